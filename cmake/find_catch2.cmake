# ddp_catch2: one target and one include, "test/support/catch.h", for Catch2 2
# (a header) and Catch2 3 (a library).
add_library(ddp_catch2 INTERFACE)
set(_ddp_catch2_major 2)
ddp_header_package(ddp_catch2_headers catch2/catch.hpp)
if(NOT TARGET ddp_catch2_headers)
  ddp_header_package(ddp_catch2_headers catch2/catch_all.hpp)
  if(TARGET ddp_catch2_headers)
    set(_ddp_catch2_major 3)
    target_link_libraries(ddp_catch2_headers
                          INTERFACE "${DDP_HEADERS_DIR}/lib/libCatch2.a")
  endif()
endif()

if(TARGET ddp_catch2_headers)
  target_link_libraries(ddp_catch2 INTERFACE ddp_catch2_headers)
else()
  find_package(Catch2 CONFIG QUIET)
  set(_ddp_catch2_major 3)
  if(Catch2_FOUND)
    set(_ddp_catch2_major "${Catch2_VERSION_MAJOR}")
  endif()
  if(NOT TARGET Catch2::Catch2)
    ddp_fetch(
      Catch2 catch2 https://github.com/catchorg/Catch2/archive/refs/tags/v3.8.1.tar.gz
      18b3f70ac80fccc340d8c6ff0f339b2ae64944782f8d2fca2bd705cf47cadb79)
  endif()
  target_link_libraries(ddp_catch2 INTERFACE Catch2::Catch2)
endif()
target_compile_definitions(ddp_catch2
                           INTERFACE DDP_CATCH2_MAJOR=${_ddp_catch2_major})
