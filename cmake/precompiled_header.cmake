# What a target that uses LibTorch needs here (flags, definitions, include
# folders), and precompiled headers, built once a build folder. GCC accepts one
# only where every flag and definition is the same: give such a target no options
# of its own.
#   ddp_use_torch_pch(TARGET)      ATen and c10d: the libraries
#   ddp_use_torch_pch(TARGET ALL)  torch/torch.h: tests and samples, with -O1
#
# Measured with GCC 12, user seconds a file without, with the first and with the
# second: reducer.cpp 11.7, 4.9, 11.0; wait.cpp 7.9, 2.6, 6.2; a file that
# includes torch/torch.h 16.4, 10.9, 6.4. The second loses on the library because
# each file again instantiates what torch/torch.h defers.
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

# ddp_add_torch_pch(NAME HEADER ...): with the options of this folder.
function(ddp_add_torch_pch name)
  if(NOT DDP_PRECOMPILED_HEADER)
    return()
  endif()
  set(source "${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}"
       CONTENT "// Exists to precompile a header.\n")
  add_library(${name} OBJECT "${source}")
  target_link_libraries(${name} PRIVATE ddp_torch_private)
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()

function(ddp_use_torch_pch target)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:ddp_torch_private>)
  if(DDP_PRECOMPILED_HEADER)
    if(ARGN STREQUAL "ALL")
      target_precompile_headers(${target} REUSE_FROM ddp_program_pch)
    else()
      target_precompile_headers(${target} REUSE_FROM ddp_torch_pch)
    endif()
  endif()
endfunction()

set(DDP_C10D_HEADERS
    <torch/types.h> <torch/csrc/distributed/c10d/HashStore.hpp>
    <torch/csrc/distributed/c10d/ProcessGroup.hpp>
    <torch/csrc/distributed/c10d/TCPStore.hpp>)
ddp_add_torch_pch(ddp_torch_pch ${DDP_C10D_HEADERS})
