# Each public header compiles alone, as C++17, without our flags, definitions
# and precompiled header: the build is the test.
set(_ddp_headers)
foreach(folder IN ITEMS ddp dp)
  file(GLOB _ddp_found RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS
       "${PROJECT_SOURCE_DIR}/${folder}/*.h"
       "${PROJECT_SOURCE_DIR}/${folder}/exchanges/*.h"
       "${PROJECT_SOURCE_DIR}/${folder}/optim/*.h")
  list(APPEND _ddp_headers ${_ddp_found})
endforeach()

add_library(ddp_header_test OBJECT)
foreach(header IN LISTS _ddp_headers)
  string(MAKE_C_IDENTIFIER "${header}" name)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${header}\"\n")
  target_sources(ddp_header_test PRIVATE "${source}")
endforeach()
target_compile_features(ddp_header_test PRIVATE cxx_std_17)
set_target_properties(ddp_header_test PROPERTIES CXX_EXTENSIONS OFF)
target_compile_options(ddp_header_test PRIVATE -O0 -Wall -Wextra
                                               -Wno-unused-parameter)
target_link_libraries(ddp_header_test PRIVATE ddp::ddp ddp::dp)
