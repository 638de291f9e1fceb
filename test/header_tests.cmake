# Each public header compiles alone, as C++17, without our flags and definitions:
# the build is the test. Most of the time goes into <ATen/ATen.h>, so the headers
# that have it behind them get it precompiled: it can hide nothing that they lack.
include(public_headers)
ddp_public_headers(_ddp_headers)

# Headers of LibTorch that include it first of all.
set(_ddp_aten
    "^#include <(ATen/ATen[.]h|torch/types[.]h|torch/(nn|optim|data)/|torch/csrc/distributed/c10d/(Backend|Work)[.]hpp)"
)
function(ddp_has_aten_behind result header)
  ddp_headers_behind(behind "${header}")
  set(${result} OFF PARENT_SCOPE)
  foreach(each IN LISTS behind)
    file(STRINGS "${PROJECT_SOURCE_DIR}/${each}" lines REGEX "${_ddp_aten}")
    if(lines)
      set(${result} ON PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

function(ddp_add_header_test name)
  add_library(${name} OBJECT ${ARGN})
  target_compile_features(${name} PRIVATE cxx_std_17)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  target_compile_options(${name} PRIVATE -O0 -g0 -fno-sanitize=all -Wall
                                         -Wextra -Wno-unused-parameter)
  target_link_libraries(${name} PRIVATE ddp::ddp ddp::dp)
endfunction()

set(_ddp_aten_tests)
set(_ddp_small_tests)
foreach(header IN LISTS _ddp_headers)
  string(MAKE_C_IDENTIFIER "${header}" name)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${header}\"\n")
  ddp_has_aten_behind(has_aten "${header}")
  if(has_aten)
    list(APPEND _ddp_aten_tests "${source}")
  else()
    list(APPEND _ddp_small_tests "${source}")
  endif()
endforeach()
ddp_add_header_test(ddp_header_test ${_ddp_aten_tests})
if(DDP_PRECOMPILED_HEADER)
  target_precompile_headers(ddp_header_test PRIVATE <ATen/ATen.h>)
endif()
ddp_add_header_test(ddp_small_header_test ${_ddp_small_tests})
