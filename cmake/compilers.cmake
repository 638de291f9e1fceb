# Choices that must be made before project() or find_package(Torch).

# Compiler results are shared between build folders and clones.
find_program(DDP_CCACHE ccache)
if(DDP_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers hit only when ccache may ignore their time stamps.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime;CCACHE_BASEDIR=${CMAKE_CURRENT_SOURCE_DIR};CCACHE_NOHASHDIR=1;${DDP_CCACHE}"
      CACHE STRING "")
endif()

# Where ./scripts/setup puts what it downloads.
if(DEFINED ENV{XDG_CACHE_HOME})
  set(DDP_CACHE_DIR "$ENV{XDG_CACHE_HOME}/ddp-libtorch")
else()
  set(DDP_CACHE_DIR "$ENV{HOME}/.cache/ddp-libtorch")
endif()

# CUDA Toolkit: the machine's own, else the one that ./scripts/setup made of
# pip's packages.
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(DDP_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda
               PATH_SUFFIXES bin)
  if(NOT DDP_NVCC AND EXISTS "${DDP_CACHE_DIR}/cuda/bin/nvcc")
    set(DDP_NVCC "${DDP_CACHE_DIR}/cuda/bin/nvcc" CACHE FILEPATH "" FORCE)
  endif()
  if(DDP_NVCC)
    set(CMAKE_CUDA_COMPILER "${DDP_NVCC}" CACHE FILEPATH "")
    get_filename_component(_ddp_cuda_bin "${DDP_NVCC}" DIRECTORY)
    get_filename_component(_ddp_cuda_root "${_ddp_cuda_bin}" DIRECTORY)
    set(CUDA_TOOLKIT_ROOT_DIR "${_ddp_cuda_root}" CACHE PATH "")
  endif()
endif()

# We compile no kernel; LibTorch's package asks a GPU for its architecture when
# this is unset, and there may be none.
if(NOT DEFINED TORCH_CUDA_ARCH_LIST AND NOT DEFINED ENV{TORCH_CUDA_ARCH_LIST})
  set(TORCH_CUDA_ARCH_LIST "9.0" CACHE STRING "")
endif()
