#!/bin/sh
# compile_with.sh COMPILER OTHER COMMAND...: runs COMMAND with OTHER (a g++)
# replaced by COMPILER (a clang++), because CMake supports one compiler per
# build folder.
set -eu
compiler=$1
other=$2
shift 2
for word; do
  shift
  if [ "$word" = "$other" ]; then
    # Clang must accept options for GCC. ccache needs a precompiled header
    # without a time stamp.
    set -- "$@" "$compiler" -fpch-instantiate-templates -Wno-unknown-warning-option \
      -Wno-unused-command-line-argument -Xclang -fno-pch-timestamp
  else
    set -- "$@" "$word"
  fi
  case $word in
    # Remove the old precompiled header; otherwise Clang would read it while it
    # creates the new one.
    *.gch) rm -f "$word" ;;
    # Clang's precompiled headers contain their folder: see compilers.cmake.
    CCACHE_BASEDIR=*) export CCACHE_NAMESPACE="${word#CCACHE_BASEDIR=}" ;;
  esac
done
exec "$@"
