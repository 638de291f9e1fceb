# Flags, definitions and include folders of targets that use LibTorch, and
# precompiled headers, built once per build folder. GCC accepts a precompiled
# header only if every flag and definition is the same: give such a target no
# options of its own.
#   ddp_use_torch_pch(TARGET)
#
# GCC instantiates inline functions and templates of a header anew in each file
# that includes it, precompiled or not. Therefore torch/torch.h is not included
# here, in tests or in samples: an empty file with torch/torch.h takes as long
# to compile as a small test with these headers.
add_library(ddp_torch_private INTERFACE)
target_include_directories(ddp_torch_private INTERFACE "${PROJECT_SOURCE_DIR}")
target_link_libraries(ddp_torch_private INTERFACE torch ddp_gloo_headers
                                                  ddp_build_options)
target_compile_options(
  ddp_torch_private
  INTERFACE "-fmacro-prefix-map=${TORCH_INSTALL_PREFIX}/include/=")
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

# ddp_add_torch_pch(NAME): builds a precompiled header with the options of this
# folder.
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
