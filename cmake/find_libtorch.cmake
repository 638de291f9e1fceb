# Finds Torch, version DDP_TORCH_VERSION or newer, by Torch_DIR or
# CMAKE_PREFIX_PATH, otherwise the torch that python3 imports, otherwise the one
# that ./scripts/setup installed. Sets Torch_FOUND, and DDP_TORCH_REFUSED to the
# LibTorches that were found and not taken, with the reasons. This file is
# installed, because consumers need it too.
set(DDP_TORCH_REFUSED "")

# ddp_cudart_of(RESULT LIBRARY): the major version of the libcudart that a
# libc10_cuda.so loads, or "". In archives its name is libcudart-HASH.so.12.
function(ddp_cudart_of result library)
  file(STRINGS "${library}" names REGEX "^libcudart[^/ ]*\\.so\\.[0-9]+")
  set(${result} "" PARENT_SCOPE)
  if(names MATCHES "\\.so\\.([0-9]+)")
    set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  endif()
endfunction()

# ddp_check_libtorch(ROOT): ends with one sentence where LibTorch's own package
# would end with other errors, or find no GPU.
function(ddp_check_libtorch root)
  if(EXISTS "${root}/lib/libtorch_hip.so")
    message(
      FATAL_ERROR
        "Expected a LibTorch for CUDA or for the CPU, but got one for ROCm: "
        "${root}. ROCm is not supported.")
  endif()
  if(EXISTS "${root}/lib/libtorch_cuda.so" AND NOT DDP_CUDA_TOOLKIT)
    ddp_cudart_of(version "${root}/lib/libc10_cuda.so")
    string(REGEX REPLACE "(.+)" " \\1" version "${version}")
    message(
      FATAL_ERROR
        "Expected a CUDA Toolkit${version} for the LibTorch in ${root}, but "
        "${DDP_CUDA_PROBLEM}. Install that toolkit, or pass "
        "-DCMAKE_CUDA_COMPILER=<toolkit>/bin/nvcc in an empty build folder, or "
        "run ./scripts/setup, which takes pip's, or use a LibTorch for the CPU.")
  endif()
endfunction()

# Looks for Torch with further arguments of find_package. A macro, because
# LibTorch's package sets variables for its user.
macro(ddp_try_libtorch)
  find_path(_ddp_torch_config TorchConfig.cmake NO_CACHE ${ARGN}
            HINTS "${Torch_DIR}" PATH_SUFFIXES share/cmake/Torch)
  if(_ddp_torch_config AND NOT CMAKE_DISABLE_FIND_PACKAGE_Torch)
    get_filename_component(_ddp_torch_root "${_ddp_torch_config}/../../.." ABSOLUTE)
    ddp_check_libtorch("${_ddp_torch_root}")
  endif()
  unset(_ddp_torch_config)
  # LibTorch compiles a CUDA program with the program's C++ standard. CMake before
  # 3.25.2 knows no C++20 for nvcc.
  if(CMAKE_VERSION VERSION_LESS 3.25.2 AND CMAKE_CXX_STANDARD GREATER 17
     AND NOT CMAKE_CUDA_STANDARD)
    set(CMAKE_CUDA_STANDARD 17)
  endif()
  find_package(Torch ${DDP_TORCH_VERSION} QUIET ${ARGN})
  if(NOT Torch_FOUND)
    foreach(_ddp_config _ddp_version IN ZIP_LISTS Torch_CONSIDERED_CONFIGS Torch_CONSIDERED_VERSIONS)
      string(APPEND DDP_TORCH_REFUSED " ${_ddp_config} has version ${_ddp_version}.")
    endforeach()
  endif()
endmacro()

if(NOT Torch_FOUND)
  foreach(_ddp_folder IN LISTS CMAKE_PREFIX_PATH Torch_DIR)
    if(NOT EXISTS "${_ddp_folder}" AND NOT _ddp_folder MATCHES "-NOTFOUND$")
      string(APPEND DDP_TORCH_REFUSED " ${_ddp_folder} does not exist.")
    endif()
  endforeach()
  ddp_try_libtorch()
endif()

set(_ddp_pythons python3)
# Without this mark the installation was interrupted.
file(GLOB _ddp_marks "${DDP_CACHE_DIR}/venv/.torch-*")
if(_ddp_marks)
  list(APPEND _ddp_pythons "${DDP_CACHE_DIR}/venv/bin/python3")
endif()

foreach(_ddp_python IN LISTS _ddp_pythons)
  if(NOT Torch_FOUND)
    execute_process(
      COMMAND
        "${_ddp_python}" -c
        "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s and s.origin else '')"
      OUTPUT_VARIABLE _ddp_torch_root
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(_ddp_torch_root)
      unset(Torch_DIR CACHE)
      ddp_try_libtorch(PATHS "${_ddp_torch_root}" NO_DEFAULT_PATH)
    endif()
  endif()
endforeach()

# The linker also searches for LibTorch's NCCL in the folder of the CUDA Toolkit
# and may find an older version there. At run time programs find the NCCL of the
# wheel.
set(_ddp_nccl "${TORCH_INSTALL_PREFIX}/../nvidia/nccl/lib")
if(TARGET torch AND EXISTS "${_ddp_nccl}")
  set_property(TARGET torch APPEND PROPERTY INTERFACE_LINK_OPTIONS
                                            "LINKER:-rpath-link,${_ddp_nccl}")
endif()

# ddp_cuda_of_libtorch(MAJOR PROBLEM): sets MAJOR to CUDA's major version of the
# LibTorch that was found ("none" without CUDA), and PROBLEM to the reason why
# the CUDA Toolkit does not match, or to "". A LibTorch with a static libcudart
# names no version and is assumed to match the toolkit.
function(ddp_cuda_of_libtorch major problem)
  set(${problem} "" PARENT_SCOPE)
  if(NOT TARGET torch_cuda)
    set(${major} none PARENT_SCOPE)
    return()
  endif()
  get_target_property(library c10_cuda LOCATION)
  ddp_cudart_of(loaded "${library}")
  if(NOT loaded)
    set(${major} "${CUDAToolkit_VERSION_MAJOR}" PARENT_SCOPE)
    return()
  endif()
  set(${major} "${loaded}" PARENT_SCOPE)
  if(CUDAToolkit_VERSION_MAJOR AND NOT CUDAToolkit_VERSION_MAJOR STREQUAL loaded)
    set(${problem}
        "Expected a CUDA Toolkit ${loaded}, because ${library} needs libcudart.so.${loaded}, but got CUDA Toolkit ${CUDAToolkit_VERSION} (${CMAKE_CUDA_COMPILER}): pass -DCMAKE_CUDA_COMPILER=<CUDA Toolkit ${loaded}>/bin/nvcc in an empty build folder, or take a LibTorch for CUDA ${CUDAToolkit_VERSION_MAJOR}."
        PARENT_SCOPE)
  endif()
endfunction()
