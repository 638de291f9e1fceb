# Sourced by try: a user without root and without a network builds and trains.
# Root packs the header packages and prepares a mount and a network namespace,
# in which the user's commands run as uid 65534 with a HOME of their own.

TRY_UID=65534

# hide_packages FOLDER PACKAGE ...: hides the packages' headers, CMake files and
# entries in dpkg's list. FOLDER is for its own files.
hide_packages() {
  local own="$1" folder
  shift
  dpkg-query -L "$@" | grep -E '^/usr/(include|.*/cmake)/[^/]+$' |
    grep -v -- '-linux-gnu$' | sort -u >"$own/hidden"
  awk -v RS= -v ORS='\n\n' -v names=" $* " '!index(names, " " $2 " ")' \
    /var/lib/dpkg/status >"$own/status"
  mount --bind "$own/status" /var/lib/dpkg/status
  while read -r folder; do
    mount -t tmpfs -o ro tmpfs "$folder"
  done <"$own/hidden"
}

# show_alone FOLDER ...: replaces root's HOME, which others cannot enter, by an
# empty one that contains these folders of it, at their paths.
show_alone() {
  local own="$1" number=0 folder
  shift
  for folder in "$@"; do
    mkdir "$own/$((number += 1))"
    mount --rbind "$folder" "$own/$number"
  done
  mount -t tmpfs -o mode=755 tmpfs "$HOME"
  number=0
  for folder in "$@"; do
    mkdir -p "$folder"
    mount --rbind "$own/$((number += 1))" "$folder"
  done
}

# The user's commands: docs/cmake_options.md's, in batches, and
# ./scripts/demo, which includes ./scripts/setup.
train_as_user() {
  say "uid $(id -u), HOME=$HOME, network: $(ip -brief link | cut -d ' ' -f 1)"
  [ ! -e /usr/include/CLI/CLI.hpp ] || die "expected no CLI11 on this machine"
  [ "$(ip -brief link | wc -l)" -eq 1 ] || die "expected loopback alone"
  cmake -S . -B build -DCMAKE_PREFIX_PATH="$LIBTORCH" -DDDP_BUILD_TESTS=OFF \
    -DDDP_UNITY_BUILD=ON -DDDP_HEADERS_DIR="$DDP_HEADERS_DIR"
  cmake --build build -j "$(build_jobs)" --target ddp ddp_dp ddprun minimal
  ./build/bin/ddprun --nproc-per-node=2 ./build/bin/minimal
  say "./scripts/demo"
  CMAKE_PREFIX_PATH="$LIBTORCH" ./scripts/demo --epochs=1
}

# enter_as_user FOLDER LIBTORCH TOOLKIT: root's part within the namespaces.
# FOLDER has the user's HOME, the clone in it, and the header packages.
enter_as_user() {
  local folder="$1" libtorch="$2" toolkit="$3" shown
  local -a below_home=()
  ip link set lo up
  for shown in "$(dirname "$libtorch")" "$toolkit"; do
    [[ "$shown" != "$HOME"/* ]] || below_home+=("$shown")
  done
  cd "$folder/home/ddp"
  show_alone "$folder" "${below_home[@]}"
  hide_packages "$folder" catch2 libspdlog-dev libfmt-dev libcli11-dev \
    libgloo-dev nlohmann-json3-dev
  exec setpriv --reuid "$TRY_UID" --regid "$TRY_UID" --clear-groups env -i \
    HOME="$folder/home" PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
    LIBTORCH="$libtorch" DDP_HEADERS_DIR="$folder/headers" \
    ${toolkit:+"CUDA_HOME=$toolkit"} bash -euo pipefail -c '
      . scripts/lib/common.sh
      . scripts/lib/try_user.sh
      train_as_user'
}

try_user() {
  local toolkit="" nvcc
  [ "$(id -u)" -eq 0 ] ||
    die "expected root, which makes the namespaces and becomes uid $TRY_UID"
  install_packages iproute2
  ./scripts/setup --no-build
  install_libtorch
  if [ -e "$LIBTORCH/lib/libtorch_cuda.so" ]; then
    nvcc="$(own_nvcc || printf '%s\n' "$DDP_CUDA/bin/nvcc")"
    toolkit="$(realpath "$(dirname "$(realpath "$nvcc")")/..")"
  fi
  TRY_FOLDER="$(mktemp -d)"
  trap 'rm -rf "$TRY_FOLDER"' EXIT
  chmod 755 "$TRY_FOLDER"
  ./scripts/pack-headers "$TRY_FOLDER/headers"
  mkdir -p "$TRY_FOLDER/home/ddp"
  tar -c --exclude=./build --exclude=./.git . | tar -x -C "$TRY_FOLDER/home/ddp"
  chown -R "$TRY_UID:$TRY_UID" "$TRY_FOLDER/home"
  unshare --mount --net bash -euo pipefail -c '
    . scripts/lib/common.sh
    . scripts/lib/try_user.sh
    enter_as_user "$@"' - "$TRY_FOLDER" "$LIBTORCH" "$toolkit"
}
