#!/bin/sh
# compile_with.sh COMPILER OTHER COMMAND...: runs COMMAND with COMPILER, a clang++, where
# OTHER, a g++, stands in it. CMake knows one compiler a build folder.
set -eu
compiler=$1
other=$2
shift 2
for word; do
  shift
  if [ "$word" = "$other" ]; then
    # What CMake and we say to GCC alone is no mistake here; ccache needs a
    # precompiled header without its time.
    set -- "$@" "$compiler" -fpch-instantiate-templates -Wno-unknown-warning-option \
      -Wno-unused-command-line-argument -Xclang -fno-pch-timestamp
  else
    set -- "$@" "$word"
  fi
  case $word in
    # Clang would read the old one where it is to make a new one.
    *.gch) rm -f "$word" ;;
    # Clang's precompiled headers name their folder: see compilers.cmake.
    CCACHE_BASEDIR=*) export CCACHE_NAMESPACE="${word#CCACHE_BASEDIR=}" ;;
  esac
done
exec "$@"
