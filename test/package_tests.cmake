# The package from a user's view: each test configures and builds test/package
# from nothing, in one of the ways to use ddp. Without optimization and in
# batches, because the errors to find are in headers, flags and links.
set(_ddp_prefix "${CMAKE_CURRENT_BINARY_DIR}/package/prefix")
set(_ddp_consumer_options
    -DCMAKE_BUILD_TYPE=
    "-DTorch_DIR=${Torch_DIR}" "-DDDP_HEADERS_DIR=${DDP_HEADERS_DIR}"
    "-DDDP_SOURCE_DIR=${PROJECT_SOURCE_DIR}"
    # Other tests run beside it and use the other core.
    -DCMAKE_JOB_POOLS=one=1 -DCMAKE_JOB_POOL_COMPILE=one)

# The sources are compiled by the other compiler, if it is installed.
find_program(DDP_CLANG clang++)
set(_ddp_other_compiler "${CMAKE_CXX_COMPILER}")
if(DDP_CLANG AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(_ddp_other_compiler "${DDP_CLANG}")
endif()

# ddp_add_package_test(FROM COMPILER [ALONE] [option ...]): the user's program is
# built and run. ALONE: its file is compiled, without ddp's libraries, which take
# two minutes.
function(ddp_add_package_test from compiler)
  cmake_parse_arguments(PARSE_ARGV 2 arg ALONE "" "")
  set(target)
  set(run --test-command train)
  if(arg_ALONE)
    set(target --build-target CMakeFiles/train.dir/train.cpp.o)
    set(run)
  endif()
  add_test(
    NAME package_${from}
    COMMAND
      "${CMAKE_CTEST_COMMAND}" --build-and-test
      "${CMAKE_CURRENT_SOURCE_DIR}/package"
      "${CMAKE_CURRENT_BINARY_DIR}/package/${from}" --build-generator
      "${CMAKE_GENERATOR}" --build-makeprogram "${CMAKE_MAKE_PROGRAM}"
      ${target} --build-options ${_ddp_consumer_options} -DDDP_FROM=${from}
      "-DCMAKE_CXX_COMPILER=${compiler}" ${arg_UNPARSED_ARGUMENTS} ${run})
endfunction()

add_test(NAME package_prefix
         COMMAND "${CMAKE_COMMAND}" --install "${PROJECT_BINARY_DIR}" --prefix
                 "${_ddp_prefix}")
set_tests_properties(package_prefix PROPERTIES FIXTURES_SETUP ddp_prefix)

# As C++20, for which LibTorch's package asks nvcc, too. The others are C++17.
ddp_add_package_test(install "${CMAKE_CXX_COMPILER}" -DCMAKE_CXX_STANDARD=20
                     "-DCMAKE_PREFIX_PATH=${_ddp_prefix}")
set_tests_properties(package_install PROPERTIES FIXTURES_REQUIRED ddp_prefix)
# FetchContent adds the folder as add_subdirectory() does.
if(DDP_NIGHTLY_TESTS)
  ddp_add_package_test(folder "${_ddp_other_compiler}" -DDDP_UNITY_BUILD=ON
                       -DCMAKE_UNITY_BUILD_BATCH_SIZE=0)
endif()
ddp_add_package_test(fetch "${_ddp_other_compiler}" ALONE)

# The next tests configure a project that must be refused: CMake exits with 1
# and its error matches a regular expression.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
set(_ddp_refused "${Python3_EXECUTABLE}"
                 "${CMAKE_CURRENT_SOURCE_DIR}/support/expect_output.py" --codes=1)

# Without LibTorch the error says how to pass its path in addition to ddp's.
add_test(
  NAME package_without_torch
  COMMAND
    ${_ddp_refused}
    "Expected LibTorch .*-DCMAKE_PREFIX_PATH=\"[^\"]*/prefix.<libtorch>\""
    "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_SOURCE_DIR}/package" -B
    "${CMAKE_CURRENT_BINARY_DIR}/package/without_torch" -G "${CMAKE_GENERATOR}"
    "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}" -DDDP_FROM=install
    "-DCMAKE_PREFIX_PATH=${_ddp_prefix}" -DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON)
set_tests_properties(package_without_torch PROPERTIES FIXTURES_REQUIRED
                                                      ddp_prefix)

# ddp_add_other_torch_test(NAME FROM EXPECTED LINE ...): ddp must refuse a
# LibTorch of the same version that these lines of TorchConfig.cmake describe.
function(ddp_add_other_torch_test name from expected)
  set(torch "${CMAKE_CURRENT_BINARY_DIR}/package/${name}")
  list(JOIN ARGN "\n" lines)
  file(WRITE "${torch}/TorchConfig.cmake"
       "set(TORCH_INSTALL_PREFIX \"${torch}\")\n"
       "add_library(torch INTERFACE IMPORTED)\n${lines}\n")
  file(WRITE "${torch}/TorchConfigVersion.cmake"
       "set(PACKAGE_VERSION ${Torch_VERSION})\n"
       "set(PACKAGE_VERSION_EXACT TRUE)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
  add_test(
    NAME package_${name}
    COMMAND
      ${_ddp_refused} "${expected}" "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_SOURCE_DIR}/package" -B
      "${torch}/build" -G "${CMAKE_GENERATOR}"
      "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}" -DDDP_FROM=${from}
      "-DDDP_SOURCE_DIR=${PROJECT_SOURCE_DIR}"
      "-DCMAKE_PREFIX_PATH=${_ddp_prefix}" "-DTorch_DIR=${torch}")
  set_tests_properties(
    package_${name}
    PROPERTIES FIXTURES_REQUIRED ddp_prefix LABELS package TIMEOUT 1200)
endfunction()

# ddp_lines_of_cuda(RESULT LOADED TOOLKIT): the lines of a LibTorch whose
# libc10_cuda.so needs one version of libcudart, but that finds another version
# of the CUDA Toolkit.
function(ddp_lines_of_cuda result loaded toolkit)
  set(library "${CMAKE_CURRENT_BINARY_DIR}/package/libc10_cuda_${loaded}.so")
  file(WRITE "${library}" "libcudart-9335f6a2.so.${loaded}\n")
  set(${result}
      "add_library(torch_cuda INTERFACE IMPORTED)"
      "add_library(c10_cuda SHARED IMPORTED)"
      "set_target_properties(c10_cuda PROPERTIES IMPORTED_LOCATION \"${library}\")"
      "set(CUDAToolkit_VERSION_MAJOR ${toolkit})"
      "set(CUDAToolkit_VERSION ${toolkit}.2)"
      PARENT_SCOPE)
endfunction()

# Its CUDA differs from that of ddp's LibTorch, for any version of the toolkit.
ddp_lines_of_cuda(_ddp_lines 90 "${DDP_CUDA}")
ddp_add_other_torch_test(
  other_torch install
  "Expected the LibTorch that ddp was built with .*: ${DDP_CUDA}[)].*: 90[)]"
  ${_ddp_lines})
# The toolkit does not belong to LibTorch.
ddp_lines_of_cuda(_ddp_lines 90 91)
set(_ddp_expected
    "Expected a CUDA.*Toolkit %, because.*libcudart.so.%,.*but.*got.*CUDA.*Toolkit.*91.2")
string(REPLACE % 90 _ddp_expected_90 "${_ddp_expected}")
ddp_add_other_torch_test(other_toolkit folder "${_ddp_expected_90}"
                         ${_ddp_lines})
if(TARGET torch_cuda)
  ddp_lines_of_cuda(_ddp_lines "${DDP_CUDA}" 91)
  string(REPLACE % "${DDP_CUDA}" _ddp_expected "${_ddp_expected}")
  ddp_add_other_torch_test(other_toolkit_of_user install "${_ddp_expected}"
                           ${_ddp_lines})
  ddp_add_other_torch_test(
    torch_without_cuda install
    "Expected the LibTorch that ddp was built with .*: ${DDP_CUDA}[)].*: none[)]")
endif()

# ddp_add_refused_torch_test(NAME EXPECTED VERSION LIBRARY [option ...]): ddp
# must refuse a LibTorch before its own package is read.
function(ddp_add_refused_torch_test name expected version library)
  set(torch "${CMAKE_CURRENT_BINARY_DIR}/package/${name}")
  set(folder "${torch}/share/cmake/Torch")
  file(WRITE "${torch}/lib/${library}" "")
  file(WRITE "${torch}/lib/libc10_cuda.so" "libcudart-9335f6a2.so.90\n")
  file(WRITE "${folder}/TorchConfig.cmake" "message(FATAL_ERROR \"was read\")\n")
  file(WRITE "${folder}/TorchConfigVersion.cmake"
       "set(PACKAGE_VERSION ${version})\n"
       "if(NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)\n"
       "  set(PACKAGE_VERSION_COMPATIBLE TRUE)\nendif()\n")
  # python3 has the LibTorch of this build.
  get_filename_component(python "${DDP_TORCH_PYTHON}" DIRECTORY)
  add_test(
    NAME package_${name}
    COMMAND
      ${_ddp_refused} "${expected}" "${CMAKE_COMMAND}" -E env
      "PATH=${python}:$ENV{PATH}" "${CMAKE_COMMAND}" -S
      "${CMAKE_CURRENT_SOURCE_DIR}/package" -B "${torch}/build" -G
      "${CMAKE_GENERATOR}" "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}"
      -DDDP_FROM=install "-DCMAKE_PREFIX_PATH=${_ddp_prefix}"
      "-DTorch_DIR=${folder}" ${ARGN})
  set_tests_properties(
    package_${name} PROPERTIES FIXTURES_REQUIRED ddp_prefix LABELS package TIMEOUT
                               1200)
endfunction()

ddp_add_refused_torch_test(torch_for_rocm "got one.for ROCm" 99.0 libtorch_hip.so)
ddp_add_refused_torch_test(
  torch_without_toolkit
  "Expected a CUDA Toolkit 90 for the.*LibTorch in.*,[ \n]+but.*/false[ \n]+--version[ \n]+fails"
  99.0 libtorch_cuda.so -DCMAKE_CUDA_COMPILER=/bin/false)
# Python's LibTorch is taken instead, so this one is no error.
string(REPLACE --codes=1 --codes=0 _ddp_refused "${_ddp_refused}")
ddp_add_refused_torch_test(
  older_torch "not taken:.*/older_torch/.*/TorchConfig.cmake has version 1.9.0"
  1.9.0 libtorch.so)
string(REPLACE --codes=0 --codes=1 _ddp_refused "${_ddp_refused}")
add_test(
  NAME package_without_download
  COMMAND
    ${_ddp_refused}
    "Expected CLI11, but no package has it, and[ \n]+file:///none.tar.gz cannot be[ \n]+downloaded.*libcli11-dev.*DDP_HEADERS_DIR"
    "${CMAKE_COMMAND}" -P "${CMAKE_CURRENT_SOURCE_DIR}/package/download.cmake"
    "${CMAKE_CURRENT_BINARY_DIR}/package/download")
add_test(
  NAME package_without_headers
  COMMAND
    ${_ddp_refused}
    "Expected header packages in DDP_HEADERS_DIR, but.*/none/include.*pack-headers"
    "${CMAKE_COMMAND}" -S "${PROJECT_SOURCE_DIR}" -B
    "${CMAKE_CURRENT_BINARY_DIR}/package/without_headers" -G
    "${CMAKE_GENERATOR}" "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}"
    -DDDP_BUILD_LIBRARY=OFF -DDDP_HEADERS_DIR=/none)
set_tests_properties(package_without_download package_without_headers
                     PROPERTIES LABELS package)

set_tests_properties(
  package_prefix package_install package_fetch package_without_torch
  PROPERTIES LABELS package TIMEOUT 1200)
if(TEST package_folder)
  set_tests_properties(package_folder PROPERTIES LABELS package TIMEOUT 1200)
endif()
if(DDP_CCACHE)
  foreach(name IN ITEMS install fetch folder)
    if(TEST package_${name})
      set_property(
        TEST package_${name}
        APPEND
        PROPERTY ENVIRONMENT "CMAKE_CXX_COMPILER_LAUNCHER=${DDP_CCACHE}"
                 "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
                 "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime")
    endif()
  endforeach()
endif()
