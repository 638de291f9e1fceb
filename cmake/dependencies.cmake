# Every dependency: what the user has, else the distribution's, else a pinned
# version by FetchContent. DDP_HEADERS_DIR names a folder of header packages
# for a machine without network (./scripts/pack-headers fills one).
include(FetchContent)
set(DDP_HEADERS_DIR "" CACHE PATH "Folder with include/{CLI,spdlog,fmt,catch2,gloo,nlohmann}")
find_package(Threads REQUIRED)

include(find_header_package)

if(DDP_BUILD_LIBRARY)
  include(find_libtorch)
  include(find_gloo_headers)
  # A CPU-only LibTorch has no such target.
  if(TARGET torch_cuda)
    set(DDP_WITH_NCCL ON)
    include(find_nccl_header)
  else()
    set(DDP_WITH_NCCL OFF)
  endif()
  message(STATUS "ProcessGroupNCCL: ${DDP_WITH_NCCL}")
endif()
if(DDP_BUILD_LAUNCHER OR DDP_BUILD_SAMPLES)
  include(find_cli11)
endif()
if(DDP_BUILD_LAUNCHER)
  include(find_spdlog)
  include(find_nlohmann_json)
endif()
if(DDP_BUILD_TESTS)
  include(find_catch2)
endif()
