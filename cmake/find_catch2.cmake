# ddp_catch2: Catch2 2 or 3 behind one target and one include,
# "test/support/catch.h".
add_library(ddp_catch2 INTERFACE)
ddp_header_package(ddp_catch2_headers catch2/catch.hpp)
if(TARGET ddp_catch2_headers)
  target_link_libraries(ddp_catch2 INTERFACE ddp_catch2_headers)
else()
  find_package(Catch2 CONFIG QUIET)
  if(NOT TARGET Catch2::Catch2)
    FetchContent_Declare(
      Catch2
      URL https://github.com/catchorg/Catch2/archive/refs/tags/v3.8.1.tar.gz)
    FetchContent_MakeAvailable(Catch2)
  endif()
  target_link_libraries(ddp_catch2 INTERFACE Catch2::Catch2)
endif()
