# The wheel of LibTorch has Gloo's code but not its headers.
ddp_header_package(ddp_gloo_headers gloo/context.h)
if(NOT TARGET ddp_gloo_headers)
  find_path(GLOO_INCLUDE_DIR gloo/context.h
            HINTS ${TORCH_INCLUDE_DIRS})
  if(NOT GLOO_INCLUDE_DIR)
    FetchContent_Declare(
      gloo_headers
      URL https://github.com/pytorch/gloo/archive/54cbae0d3a67fa890b4c3d9ee162b7860315e341.tar.gz
      SOURCE_SUBDIR none)
    FetchContent_MakeAvailable(gloo_headers)
    file(WRITE "${gloo_headers_SOURCE_DIR}/gloo/config.h" "#pragma once\n")
    set(GLOO_INCLUDE_DIR "${gloo_headers_SOURCE_DIR}" CACHE PATH "" FORCE)
  endif()
  add_library(ddp_gloo_headers INTERFACE IMPORTED GLOBAL)
  target_include_directories(ddp_gloo_headers SYSTEM
                             INTERFACE "${GLOO_INCLUDE_DIR}")
endif()
