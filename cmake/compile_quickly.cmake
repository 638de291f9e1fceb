# ddp_compile_quickly(): for a folder of programs whose time is LibTorch's and the
# compiler's. Not optimized, and by DDP_QUICK_COMPILER where that is set: Clang takes
# a third of GCC's time, and its objects link with GCC's. With sanitizers everything
# has one compiler and one level, and one precompiled header serves all. Linked by
# the quickest linker there is: GNU's takes a second for each program with LibTorch.
set(DDP_QUICK_COMPILER "" CACHE STRING
    "Compiles tests and samples instead of CMAKE_CXX_COMPILER")

include(CheckLinkerFlag)
foreach(linker IN ITEMS lld gold)
  check_linker_flag(CXX "-fuse-ld=${linker}" DDP_HAS_${linker})
  if(DDP_HAS_${linker})
    set(DDP_QUICK_LINKER "-fuse-ld=${linker}")
    break()
  endif()
endforeach()

macro(ddp_compile_quickly)
  add_link_options(${DDP_QUICK_LINKER})
  if(DDP_SANITIZE)
    # A report then names a test's functions without their lines.
    add_compile_options(-g0)
  else()
    add_compile_options($<$<CONFIG:Release>:-O0>)
    if(DDP_QUICK_COMPILER)
      set(CMAKE_CXX_COMPILER_LAUNCHER
          "${PROJECT_SOURCE_DIR}/cmake/compile_with.sh;${DDP_QUICK_COMPILER};${CMAKE_CXX_COMPILER};${CMAKE_CXX_COMPILER_LAUNCHER}"
      )
    endif()
    set(DDP_TORCH_PCH ddp_torch_pch_quick)
    if(DDP_BUILD_LIBRARY AND NOT TARGET ${DDP_TORCH_PCH})
      ddp_add_torch_pch(${DDP_TORCH_PCH})
    endif()
  endif()
endmacro()
