# What a target that uses LibTorch needs here (flags, definitions, include
# folders), and precompiled headers, built once a build folder. GCC accepts one
# only where every flag and definition is the same: give such a target no options
# of its own.
#   ddp_use_torch_pch(TARGET)
#
# What a header defines inline and uses of templates, GCC instantiates anew in each
# file that has it, precompiled or not. So no torch/torch.h here, nor in tests and
# samples: with it an empty file takes as long as with these headers a small test.
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

set(DDP_TORCH_PCH ddp_torch_pch)
set(_ddp_torch_headers
    <torch/types.h>
    <torch/csrc/distributed/c10d/Backend.hpp>
    <torch/csrc/distributed/c10d/HashStore.hpp>
    <torch/nn/cloneable.h>
    <torch/nn/modules/container/sequential.h>
    <torch/nn/modules/linear.h>
    <torch/optim/sgd.h>
    <torch/utils.h>)

# ddp_add_torch_pch(NAME): with the options of this folder.
function(ddp_add_torch_pch name)
  if(NOT DDP_PRECOMPILED_HEADER)
    return()
  endif()
  set(source "${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}"
       CONTENT "// Exists to precompile a header.\n")
  add_library(${name} OBJECT "${source}")
  target_link_libraries(${name} PRIVATE ddp_torch_private)
  target_precompile_headers(${name} PRIVATE ${_ddp_torch_headers})
endfunction()

function(ddp_use_torch_pch target)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:ddp_torch_private>)
  if(DDP_PRECOMPILED_HEADER)
    target_precompile_headers(${target} REUSE_FROM ${DDP_TORCH_PCH})
  endif()
endfunction()

ddp_add_torch_pch(ddp_torch_pch)
