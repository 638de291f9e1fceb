# Finds the CUDA Toolkit before find_package(Torch), because LibTorch's package
# enables CUDA by itself. Uses the machine's toolkit, otherwise the one that
# ./scripts/setup created from pip packages. This file is installed, because
# consumers need it too. It therefore sets no cache variable: the cache belongs
# to the consumer.

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
  find_program(DDP_NVCC nvcc NO_CACHE HINTS ENV CUDA_HOME ENV CUDA_PATH
               PATHS /usr/local/cuda "${DDP_CACHE_DIR}/cuda" PATH_SUFFIXES bin)
endif()

# DDP_CUDA_TOOLKIT: the folder of the toolkit, or empty. An nvcc that does not
# run, or without headers beside it, is not taken: the reason is
# DDP_CUDA_PROBLEM.
set(DDP_CUDA_TOOLKIT "")
set(DDP_CUDA_PROBLEM "there is no nvcc on PATH, in CUDA_HOME, CUDA_PATH or /usr/local/cuda")

# ddp_cuda_headers(RESULT ROOT): the headers of a toolkit's runtime, or "". Conda
# has them below targets alone.
function(ddp_cuda_headers result root)
  file(GLOB found "${root}/include/cuda_runtime.h"
       "${root}/targets/*/include/cuda_runtime.h")
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

if(DDP_NVCC)
  # nvcc may be a symbolic link in a folder such as /usr/local/bin.
  set(_ddp_nvcc "${DDP_NVCC}")
  get_filename_component(_ddp_cuda_root "${_ddp_nvcc}/../.." ABSOLUTE)
  ddp_cuda_headers(_ddp_headers "${_ddp_cuda_root}")
  if(NOT _ddp_headers)
    get_filename_component(_ddp_nvcc "${_ddp_nvcc}" REALPATH)
    get_filename_component(_ddp_cuda_root "${_ddp_nvcc}/../.." ABSOLUTE)
    ddp_cuda_headers(_ddp_headers "${_ddp_cuda_root}")
  endif()
  execute_process(COMMAND "${_ddp_nvcc}" --version RESULT_VARIABLE _ddp_result
                  OUTPUT_QUIET ERROR_QUIET)
  if(NOT _ddp_result EQUAL 0)
    set(DDP_CUDA_PROBLEM "${DDP_NVCC} --version fails (${_ddp_result})")
  elseif(NOT _ddp_headers)
    set(DDP_CUDA_PROBLEM "beside ${DDP_NVCC} there is no include/cuda_runtime.h")
  else()
    set(DDP_CUDA_TOOLKIT "${_ddp_cuda_root}")
    if(NOT CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER "${_ddp_nvcc}")
    endif()
    if(NOT CUDA_TOOLKIT_ROOT_DIR)
      set(CUDA_TOOLKIT_ROOT_DIR "${_ddp_cuda_root}")
    endif()
  endif()
endif()
