# ddp_compile_quickly(): sets fast compilation for a folder of programs that
# spend their time in LibTorch. Disables optimisation and uses
# DDP_QUICK_COMPILER if it is set: Clang takes a third of GCC's time, and its
# objects can be linked with GCC's. With sanitizers all targets use one compiler
# and one optimisation level, so that they share one precompiled header. Links
# with the fastest available linker: GNU ld takes a second for each program with
# LibTorch.
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
    # Sanitizer reports then name a test's functions without line numbers.
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
