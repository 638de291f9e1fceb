# Says where the CUDA Toolkit is before find_package(Torch) asks: LibTorch's
# package enables CUDA by itself. The machine's own, else the one that
# ./scripts/setup made of pip's packages. Installed: consumers need it too. So it
# sets no cache variable but DDP_NVCC: the cache belongs to the consumer.

# Where ./scripts/setup puts what it downloads.
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
  # nvcc may be a link from a folder such as /usr/local/bin.
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
