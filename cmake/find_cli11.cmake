ddp_header_package(CLI11::CLI11 CLI/CLI.hpp)
if(NOT TARGET CLI11::CLI11)
  find_package(CLI11 2.1 CONFIG QUIET)
endif()
if(NOT TARGET CLI11::CLI11)
  ddp_fetch(
    CLI11 libcli11-dev https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.5.0.tar.gz
    17e02b4cddc2fa348e5dbdbb582c59a3486fa2b2433e70a0c3bacb871334fd55)
endif()
