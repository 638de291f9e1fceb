# ddp_gloo_headers: Gloo's headers. The wheel of LibTorch contains Gloo's code
# but not its headers.
ddp_header_package(ddp_gloo_headers gloo/context.h)
if(NOT TARGET ddp_gloo_headers)
  if(NOT CMAKE_DISABLE_FIND_PACKAGE_Gloo)
    find_path(GLOO_INCLUDE_DIR gloo/context.h HINTS ${TORCH_INCLUDE_DIRS})
  endif()
  if(NOT GLOO_INCLUDE_DIR)
    # The commit with which LibTorch 2.11 was built. SOURCE_SUBDIR prevents
    # building.
    ddp_fetch(
      gloo_headers libgloo-dev
      https://github.com/pytorch/gloo/archive/54cbae0d3a67fa890b4c3d9ee162b7860315e341.tar.gz
      61089361dbdbc9d6f75e297148369b13f615a3e6b78de1be56cce74ca2f64940
      SOURCE_SUBDIR none)
    file(CONFIGURE OUTPUT "${gloo_headers_SOURCE_DIR}/gloo/config.h"
         CONTENT "#pragma once\n")
    set(GLOO_INCLUDE_DIR "${gloo_headers_SOURCE_DIR}")
  endif()
  add_library(ddp_gloo_headers INTERFACE IMPORTED GLOBAL)
  target_include_directories(ddp_gloo_headers SYSTEM
                             INTERFACE "${GLOO_INCLUDE_DIR}")
endif()
