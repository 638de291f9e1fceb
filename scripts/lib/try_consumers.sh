# Sourced by try: programs of users (test/package) for each pair of: a way to use
# the libraries, static or shared libraries, a compiler, a C++ standard.

CONSUMERS=(
  "install static g++-11     17"
  "install shared g++-12     20 kernel"
  "install static clang++-14 20"
  "fetch   shared g++-11     20"
  "fetch   static g++-12     17"
  "fetch   shared clang++-14 17"
  "folder  static g++-11     20 kernel"
  "folder  shared g++-12     17"
  "folder  static clang++-14 17"
)

# consumer_options LINKAGE COMPILER: options of a build of the libraries.
consumer_options() {
  printf '%s\n' -G Ninja "-DCMAKE_CXX_COMPILER=$2" -DCMAKE_BUILD_TYPE=Release \
    "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG" -DDDP_UNITY_BUILD=ON \
    "-DBUILD_SHARED_LIBS=$([ "$1" = shared ] && echo ON || echo OFF)" \
    "-DTorch_DIR=$LIBTORCH/share/cmake/Torch" \
    "-DDDP_HEADERS_DIR=${DDP_HEADERS_DIR:-}"
}

# install_for_consumers LINKAGE COMPILER FOLDER: builds and installs what a
# packager does, without tests.
install_for_consumers() {
  local options
  mapfile -t options < <(consumer_options "$1" "$2")
  cmake -S . -B "$3/build" "${options[@]}" -DDDP_BUILD_TESTS=OFF \
    -DDDP_BUILD_SAMPLES=OFF -DDDP_BUILD_LAUNCHER=OFF
  cmake --build "$3/build" -j "$(build_jobs)"
  cmake --install "$3/build" --prefix "$3/prefix"
}

# has_exact_architectures FOLDER: whether the kernel is compiled for the
# architectures that the user chose, and for no other.
has_exact_architectures() {
  local found
  found="$(ninja -C "$1" -t commands train | grep 'kernel\.cu' |
    grep -o 'sm_[0-9]*' | sort -u | tr '\n' ' ')"
  [ "$found" = "sm_80 sm_90 " ] ||
    die "expected kernel.cu to be compiled for sm_80 sm_90, but got $found"
}

# try_consumer WAY LINKAGE COMPILER STANDARD [kernel]
try_consumer() {
  local folder="$PWD/build/consumers/$1-$2-$3-$4" options
  rm -rf "$folder"
  mkdir -p "$folder"
  mapfile -t options < <(consumer_options "$2" "$3")
  options+=("-DDDP_FROM=$1" "-DDDP_SOURCE_DIR=$PWD" "-DCMAKE_CXX_STANDARD=$4")
  if [ "$1" = install ]; then
    install_for_consumers "$2" "$3" "$folder/ddp"
    options+=("-DCMAKE_PREFIX_PATH=$folder/ddp/prefix")
  fi
  if [ "${5:-}" = kernel ]; then
    options+=(-DCONSUMER_CUDA=ON "-DCMAKE_CUDA_COMPILER=$(own_nvcc)"
      "-DCMAKE_CUDA_ARCHITECTURES=80;90" "-DTORCH_CUDA_ARCH_LIST=8.0;9.0"
      "-DCMAKE_CUDA_HOST_COMPILER=$3" -DCMAKE_CUDA_STANDARD=17)
  fi
  cmake -S test/package -B "$folder/build" "${options[@]}"
  cmake --build "$folder/build" -j "$(build_jobs)"
  [ "${5:-}" != kernel ] || has_exact_architectures "$folder/build"
  "$folder/build/train"
}

try_consumers() {
  local row failed=0 log
  ./scripts/setup --no-build
  install_packages g++-11 g++-12 clang-14
  install_libtorch
  export LIBTORCH
  mkdir -p build/consumers
  for row in "${CONSUMERS[@]}"; do
    log="build/consumers/$(tr -s ' ' '-' <<<"$row").log"
    # A shell of its own, because errexit is off in a condition.
    # shellcheck disable=SC2086
    if bash -c 'set -euo pipefail; . scripts/lib/common.sh
      . scripts/lib/cuda.sh; . scripts/lib/try_consumers.sh; try_consumer "$@"' - $row >"$log" 2>&1; then
      say "$row: $(tail -n 1 "$log")"
    else
      tail -n 30 "$log" >&2
      say "$row: failed, see $log"
      failed=1
    fi
  done
  return "$failed"
}
