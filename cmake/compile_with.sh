#!/bin/sh
# compile_with.sh COMPILER OTHER COMMAND...: runs COMMAND with COMPILER, a clang++, where
# OTHER, a g++, stands in it. CMake knows one compiler a build folder.
set -eu
compiler=$1
other=$2
shift 2
for word; do
  shift
  # Clang's precompiled headers hold their folder: see compilers.cmake.
  if [ "$word" = CCACHE_NOHASHDIR=1 ]; then
    continue
  elif [ "$word" = "$other" ]; then
    # What CMake and we say to GCC alone is no mistake here; ccache needs a
    # precompiled header without its time.
    set -- "$@" "$compiler" -fpch-instantiate-templates -Wno-unknown-warning-option \
      -Wno-unused-command-line-argument -Xclang -fno-pch-timestamp
  else
    set -- "$@" "$word"
  fi
  # Clang would read the old one where it is to make a new one.
  case $word in *.gch) rm -f "$word" ;; esac
done
exec "$@"
