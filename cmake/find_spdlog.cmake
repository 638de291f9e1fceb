ddp_header_package(spdlog::spdlog_header_only spdlog/spdlog.h)
if(TARGET spdlog::spdlog_header_only)
  # Debian's spdlog uses fmt of a separate package.
  if(EXISTS "${DDP_HEADERS_DIR}/include/fmt/format.h")
    target_compile_definitions(spdlog::spdlog_header_only
                               INTERFACE SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
  endif()
  target_link_libraries(spdlog::spdlog_header_only INTERFACE Threads::Threads)
else()
  find_package(spdlog 1.10 CONFIG QUIET)
endif()
if(NOT TARGET spdlog::spdlog_header_only)
  ddp_fetch(
    spdlog libspdlog-dev https://github.com/gabime/spdlog/archive/refs/tags/v1.15.3.tar.gz
    15a04e69c222eb6c01094b5c7ff8a249b36bb22788d72519646fb85feb267e67)
endif()
