ddp_header_package(CLI11::CLI11 CLI/CLI.hpp)
if(NOT TARGET CLI11::CLI11)
  find_package(CLI11 2.1 CONFIG QUIET)
endif()
if(NOT TARGET CLI11::CLI11)
  FetchContent_Declare(
    CLI11
    URL https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.5.0.tar.gz)
  FetchContent_MakeAvailable(CLI11)
endif()
