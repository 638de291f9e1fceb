# Finds every dependency: the user's installation, otherwise the distribution's,
# otherwise a pinned version by FetchContent. DDP_HEADERS_DIR names a folder of
# header packages for a machine without network (./scripts/pack-headers fills
# one).
set(DDP_HEADERS_DIR "" CACHE PATH "Folder with include/{CLI,spdlog,fmt,catch2,gloo,nlohmann}")
if(DDP_HEADERS_DIR AND NOT IS_DIRECTORY "${DDP_HEADERS_DIR}/include")
  message(
    FATAL_ERROR
      "Expected header packages in DDP_HEADERS_DIR, but there is no folder "
      "${DDP_HEADERS_DIR}/include. ./scripts/pack-headers fills a folder on a "
      "machine with a network.")
endif()
set(DDP_TORCH_VERSION 2.11)
find_package(Threads REQUIRED)

include(fetch)
include(find_cuda_toolkit)
include(find_header_package)

if(DDP_BUILD_LIBRARY)
  # This project compiles no kernels. If TORCH_CUDA_ARCH_LIST is unset,
  # LibTorch's package queries a GPU for its architecture, and there may be no
  # GPU. A parent project may compile kernels, so its setting is not changed.
  if(PROJECT_IS_TOP_LEVEL
     AND NOT DEFINED TORCH_CUDA_ARCH_LIST
     AND NOT DEFINED ENV{TORCH_CUDA_ARCH_LIST})
    set(TORCH_CUDA_ARCH_LIST "9.0")
  endif()
  include(find_libtorch)
  if(NOT Torch_FOUND)
    message(
      FATAL_ERROR
        "Expected LibTorch ${DDP_TORCH_VERSION} or newer, but found none by "
        "Torch_DIR, CMAKE_PREFIX_PATH or python3. Run ./scripts/setup, or pass "
        "-DCMAKE_PREFIX_PATH=<libtorch>.${DDP_TORCH_REFUSED}")
  endif()
  message(STATUS "LibTorch: ${TORCH_INSTALL_PREFIX}")
  if(DDP_TORCH_REFUSED)
    message(STATUS "LibTorch: not taken:${DDP_TORCH_REFUSED}")
  endif()
  # Make the imported targets global: a parent project that adds this one by
  # add_subdirectory() links them from another folder.
  get_property(_ddp_imported DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(_ddp_target IN LISTS _ddp_imported)
    set_target_properties(${_ddp_target} PROPERTIES IMPORTED_GLOBAL TRUE)
  endforeach()
  ddp_cuda_of_libtorch(DDP_CUDA _ddp_problem)
  if(_ddp_problem)
    message(FATAL_ERROR "${_ddp_problem}")
  endif()
  # A CPU-only LibTorch does not have this target.
  if(TARGET torch_cuda)
    set(DDP_WITH_NCCL ON)
    include(find_nccl_header)
  else()
    set(DDP_WITH_NCCL OFF)
  endif()
  message(STATUS "ProcessGroupNCCL: ${DDP_WITH_NCCL}")
  include(find_gloo_headers)
endif()
if(DDP_BUILD_LAUNCHER OR DDP_BUILD_SAMPLES)
  include(find_cli11)
endif()
include(find_nlohmann_json)
if(DDP_BUILD_LAUNCHER)
  include(find_spdlog)
endif()
if(DDP_BUILD_TESTS)
  include(find_catch2)
endif()
