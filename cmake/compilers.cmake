# Choices of a build of this project alone, to be made before project().

# Compiler results are shared between build folders and clones.
find_program(DDP_CCACHE ccache)
if(DDP_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers hit only when ccache may ignore their time stamps. Clang
  # writes the folder into them: then a clone shares results with itself alone.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime;CCACHE_BASEDIR=${CMAKE_CURRENT_SOURCE_DIR};CCACHE_NOHASHDIR=1"
  )
  if("${CMAKE_CXX_COMPILER} $ENV{CXX}" MATCHES "clang")
    list(APPEND CMAKE_CXX_COMPILER_LAUNCHER
         "CCACHE_NAMESPACE=${CMAKE_CURRENT_SOURCE_DIR}")
  endif()
  list(APPEND CMAKE_CXX_COMPILER_LAUNCHER "${DDP_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}" CACHE STRING "")
endif()
