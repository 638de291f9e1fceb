# ddp_use_torch_pch(TARGET): gives TARGET everything that code on LibTorch needs
# here (flags, definitions, include folders) and one precompiled header of ATen
# and c10d, built once a build folder. GCC accepts it only where every flag and
# definition is the same: give such a target no options of its own.
#
# Measured with GCC 12, user seconds a file without, with this and with a header
# of all of <torch/torch.h>: reducer.cpp 11.7, 4.9, 11.0; wait.cpp 7.9, 2.6, 6.2;
# a file that includes torch/torch.h 16.4, 10.9, 6.4. The wide header loses on
# the library because each file again instantiates what torch/torch.h defers.
add_library(ddp_torch_private INTERFACE)
target_include_directories(ddp_torch_private INTERFACE "${PROJECT_SOURCE_DIR}")
target_link_libraries(ddp_torch_private INTERFACE torch ddp_gloo_headers
                                                  ddp_build_options)
# ProcessGroupGloo.hpp and ProcessGroupNCCL.hpp are empty without these.
target_compile_definitions(ddp_torch_private INTERFACE USE_C10D_GLOO)
if(DDP_WITH_NCCL)
  target_compile_definitions(ddp_torch_private INTERFACE USE_C10D_NCCL)
  target_link_libraries(ddp_torch_private INTERFACE ddp_nccl_headers)
endif()

option(DDP_PRECOMPILED_HEADER "Precompile LibTorch's headers" ON)
if(DDP_PRECOMPILED_HEADER)
  set(_ddp_pch_source "${PROJECT_BINARY_DIR}/ddp_torch_pch.cpp")
  file(CONFIGURE OUTPUT "${_ddp_pch_source}"
       CONTENT "// Exists to precompile a header.\n")
  add_library(ddp_torch_pch OBJECT "${_ddp_pch_source}")
  target_link_libraries(ddp_torch_pch PRIVATE ddp_torch_private)
  target_precompile_headers(
    ddp_torch_pch
    PRIVATE
    <torch/types.h>
    <torch/csrc/distributed/c10d/HashStore.hpp>
    <torch/csrc/distributed/c10d/ProcessGroup.hpp>
    <torch/csrc/distributed/c10d/TCPStore.hpp>)
endif()

function(ddp_use_torch_pch target)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:ddp_torch_private>)
  if(DDP_PRECOMPILED_HEADER)
    target_precompile_headers(${target} REUSE_FROM ddp_torch_pch)
  endif()
endfunction()
