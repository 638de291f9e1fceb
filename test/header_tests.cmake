# Each public header compiles alone, as C++17, without this project's flags and
# definitions: the build is the test. A few headers of LibTorch take nearly all
# of the time, so they are precompiled for headers that include them. This
# cannot hide an include that such a header lacks.
include(public_headers)
ddp_public_headers(_ddp_headers)
list(REMOVE_ITEM _ddp_headers ddp/mpi_group.h) # needs mpi.h

# Headers of LibTorch that include <torch/nn/module.h> or <ATen/ATen.h> first of
# all.
set(_ddp_module "^#include <torch/(nn/(module[.]h|modules/)|optim/(adam|sgd))")
set(_ddp_aten
    "^#include <(ATen/ATen[.]h|torch/types[.]h|torch/data/|torch/csrc/distributed/c10d/(Backend|Work)[.]hpp)"
)
function(ddp_has_behind result header includes)
  ddp_headers_behind(behind "${header}")
  set(${result} OFF PARENT_SCOPE)
  foreach(each IN LISTS behind)
    file(STRINGS "${PROJECT_SOURCE_DIR}/${each}" lines REGEX "${includes}")
    if(lines)
      set(${result} ON PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# ddp_add_header_test(NAME PRECOMPILED SOURCE ...): PRECOMPILED may be empty.
function(ddp_add_header_test name precompiled)
  add_library(${name} OBJECT ${ARGN})
  target_compile_features(${name} PRIVATE cxx_std_17)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  target_compile_options(${name} PRIVATE -O0 -g0 -fno-sanitize=all -Wall
                                         -Wextra -Wno-unused-parameter)
  target_link_libraries(${name} PRIVATE ddp::ddp ddp::dp)
  if(DDP_PRECOMPILED_HEADER AND precompiled)
    target_precompile_headers(${name} PRIVATE "${precompiled}")
  endif()
endfunction()

set(_ddp_module_tests)
set(_ddp_aten_tests)
set(_ddp_small_tests)
foreach(header IN LISTS _ddp_headers)
  string(MAKE_C_IDENTIFIER "${header}" name)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${header}\"\n")
  ddp_has_behind(has_module "${header}" "${_ddp_module}")
  ddp_has_behind(has_aten "${header}" "${_ddp_aten}")
  if(has_module)
    list(APPEND _ddp_module_tests "${source}")
  elseif(has_aten)
    list(APPEND _ddp_aten_tests "${source}")
  else()
    list(APPEND _ddp_small_tests "${source}")
  endif()
endforeach()

ddp_add_header_test(ddp_module_header_test <torch/nn/module.h> ${_ddp_module_tests})
ddp_add_header_test(ddp_aten_header_test <ATen/ATen.h> ${_ddp_aten_tests})
ddp_add_header_test(ddp_small_header_test "" ${_ddp_small_tests})
