# Finds the CUDA Toolkit before find_package(Torch), because LibTorch's package
# enables CUDA by itself. Uses the machine's toolkit, otherwise the one that
# ./scripts/setup created from pip packages. This file is installed, because
# consumers need it too. It therefore sets no cache variable except DDP_NVCC:
# the cache belongs to the consumer.

# Folder of the downloads of ./scripts/setup.
if(DEFINED ENV{XDG_CACHE_HOME})
  set(DDP_CACHE_DIR "$ENV{XDG_CACHE_HOME}/ddp-libtorch")
else()
  set(DDP_CACHE_DIR "$ENV{HOME}/.cache/ddp-libtorch")
endif()

if(CMAKE_CUDA_COMPILER)
  set(DDP_NVCC "${CMAKE_CUDA_COMPILER}")
elseif(DEFINED ENV{CUDACXX})
  set(DDP_NVCC "$ENV{CUDACXX}")
else()
  find_program(DDP_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH
               PATHS /usr/local/cuda "${DDP_CACHE_DIR}/cuda" PATH_SUFFIXES bin)
endif()

if(DDP_NVCC)
  # nvcc may be a symbolic link in a folder such as /usr/local/bin.
  set(_ddp_nvcc "${DDP_NVCC}")
  get_filename_component(_ddp_cuda_root "${_ddp_nvcc}/../.." ABSOLUTE)
  if(NOT EXISTS "${_ddp_cuda_root}/include/cuda_runtime.h")
    get_filename_component(_ddp_nvcc "${_ddp_nvcc}" REALPATH)
    get_filename_component(_ddp_cuda_root "${_ddp_nvcc}/../.." ABSOLUTE)
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER "${_ddp_nvcc}")
  endif()
  if(NOT CUDA_TOOLKIT_ROOT_DIR)
    set(CUDA_TOOLKIT_ROOT_DIR "${_ddp_cuda_root}")
  endif()
endif()
