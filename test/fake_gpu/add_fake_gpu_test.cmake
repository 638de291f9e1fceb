# ddp_add_fake_gpu_test(NAME fake_gpu_... COMMAND program [argument ...]
#                       [MODES lazy priority] [DEVICES 2]
#                       [ENVIRONMENT name=value ...] [TIMEOUT 480]
#                       [COST 0])
# Runs a program over the stand-in for the GPU: adds a test NAME.mode for
# each mode, with the label fake_gpu. Does nothing if the stand-in is
# not built.
function(ddp_add_fake_gpu_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;DEVICES;TIMEOUT;COST"
                        "COMMAND;MODES;ENVIRONMENT")
  if(NOT arg_NAME MATCHES "^fake_gpu_")
    message(FATAL_ERROR "Expected a name that starts with fake_gpu_, so that no "
                        "result is taken for a GPU's, but got ${arg_NAME}")
  endif()
  if(NOT TARGET fake_gpu)
    return()
  endif()
  foreach(default IN ITEMS "MODES;lazy;priority" "DEVICES;2" "TIMEOUT;480"
                  "COST;0")
    list(POP_FRONT default name)
    if(NOT DEFINED arg_${name})
      set(arg_${name} ${default})
    endif()
  endforeach()
  list(POP_FRONT arg_COMMAND program)
  # Makes a single test program also build the stand-in. Installed programs do
  # not need it.
  if(TARGET ${program})
    get_target_property(of_program ${program} SOURCE_DIR)
    if(of_program MATCHES "^${PROJECT_SOURCE_DIR}/test/")
      add_dependencies(${program} fake_gpu)
    endif()
  endif()
  set(folder "${PROJECT_BINARY_DIR}/fake_gpu")
  # Use LD_LIBRARY_PATH for the folder, because a path with a space is not
  # possible in LD_PRELOAD.
  set(libraries "libcudart.so.13:libcuda.so.1:libnccl.so.2")
  foreach(mode IN LISTS arg_MODES)
    set(test "${arg_NAME}.${mode}")
    add_test(NAME ${test} COMMAND ${program} ${arg_COMMAND})
    set_tests_properties(
      ${test}
      PROPERTIES
        LABELS fake_gpu
        SKIP_RETURN_CODE 77
        TIMEOUT ${arg_TIMEOUT}
        COST ${arg_COST}
        ENVIRONMENT
        "LD_LIBRARY_PATH=${folder};LD_PRELOAD=${libraries};FAKE_GPU_MODE=${mode};FAKE_GPU_SEED=1;FAKE_GPU_DEVICES=${arg_DEVICES};OMP_NUM_THREADS=1;${arg_ENVIRONMENT}"
    )
  endforeach()
endfunction()
