# The libraries ddp_mpi_openmpi and ddp_mpi_mpich, for each of the two whose
# compiler is installed (Debian: libopenmpi-dev, libmpich-dev).
# find_package(MPI) finds only one.
include_guard(GLOBAL)
foreach(_ddp_mpi IN ITEMS openmpi mpich)
  find_program(DDP_MPICXX_${_ddp_mpi} "mpicxx.${_ddp_mpi}")
  if(DDP_MPICXX_${_ddp_mpi})
    # Prints "g++ -I... -L... -l...".
    execute_process(
      COMMAND "${DDP_MPICXX_${_ddp_mpi}}" -show OUTPUT_VARIABLE _ddp_words
                                                COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(_ddp_words UNIX_COMMAND "${_ddp_words}")
    list(POP_FRONT _ddp_words)
    set(_ddp_includes "${_ddp_words}")
    list(FILTER _ddp_includes INCLUDE REGEX "^-I")
    list(FILTER _ddp_words EXCLUDE REGEX "^-I")
    list(TRANSFORM _ddp_includes REPLACE "^-I" "")
    add_library(ddp_mpi_${_ddp_mpi} INTERFACE)
    target_include_directories(ddp_mpi_${_ddp_mpi} SYSTEM
                               INTERFACE ${_ddp_includes})
    target_link_libraries(ddp_mpi_${_ddp_mpi} INTERFACE ${_ddp_words})
  endif()
endforeach()

# ddp_add_mpi_programs(NAME SOURCE LIBRARY ...): adds the programs NAME_openmpi
# and NAME_mpich.
function(ddp_add_mpi_programs name source)
  foreach(mpi IN ITEMS openmpi mpich)
    if(TARGET ddp_mpi_${mpi})
      add_executable(${name}_${mpi} ${source})
      target_link_libraries(${name}_${mpi} PRIVATE ${ARGN} ddp_mpi_${mpi}
                                                   ddp_build_options)
      set_target_properties(${name}_${mpi} PROPERTIES RUNTIME_OUTPUT_DIRECTORY
                                                      "${PROJECT_BINARY_DIR}/bin")
      ddp_use_torch_pch(${name}_${mpi})
    endif()
  endforeach()
endfunction()
