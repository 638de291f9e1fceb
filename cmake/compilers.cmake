# Compiler settings for a build of this project alone. Must be included before
# project().

# ccache shares compiler results between build folders and clones.
find_program(DDP_CCACHE ccache)
if(DDP_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache reuses precompiled headers only if it may ignore their time stamps.
  # Clang writes the folder into precompiled headers, so a clone shares results
  # only with itself.
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
