# Sourced by try: starts jobs by the wheel of ddprun in an empty virtual
# environment, and by the bare file in Debian 11.

# Makes a root of Debian 11, the oldest Debian with a glibc of 2.28 or newer.
make_bullseye() {
  local root="$1" partial="$1.partial"
  [ ! -e "$root/usr/bin/env" ] || return 0
  say "Debian 11: making its root in $root (0.2 GB)"
  as_root rm -rf "$partial"
  downloading as_root debootstrap --variant=minbase bullseye "$partial" >"$root.log" ||
    die "debootstrap has failed; its output is in $root.log"
  as_root mv "$partial" "$root"
}

# expect_ranks NAME COMMAND ...: runs a job of two ranks, each of which prints
# "rank R of 2".
expect_ranks() {
  local name="$1" output rank
  shift
  output="$("$@" 2>&1)" ||
    die "$name: the job has ended with $?: $output"
  for rank in 0 1; do
    grep -q "rank $rank of 2" <<<"$output" ||
      die "$name: expected a line of rank $rank of 2, but got: $output"
  done
  say "$name: both ranks have run"
}

# Starts two ddpruns on loopback, as if they were two hosts.
expect_two_hosts() {
  local port
  port="$(python3 -c '
import socket
print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')"
  expect_ranks "wheel, two hosts" "${alone[@]}" bash -c '
    host() {
      ddprun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d \
        --rdzv-endpoint="127.0.0.1:$0" sh -c "echo rank \$RANK of \$WORLD_SIZE"
    }
    host & host && wait $!' "$port"
}

# try_wheel [ROOT]
try_wheel() {
  local root venv
  root="$(realpath -m "${1:-$DDP_CACHE/bullseye}")"
  install_packages debootstrap debian-archive-keyring
  [ -x build/release/bin/hello ] || { ./scripts/setup --no-build && ./scripts/build release hello; }
  ./scripts/wheel
  make_bullseye "$root"

  folder="$(mktemp -d)"
  trap 'rm -rf "$folder"' EXIT
  venv="$folder/venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-index \
    build/wheel/ddprun-*.whl
  alone=(env -i "PATH=$venv/bin:/usr/bin:/bin" "HOME=$folder" DDPRUN_TOKEN=wheel timeout 120)
  expect_ranks "wheel, C++" "${alone[@]}" ddprun --nproc-per-node=2 build/release/bin/hello
  ! "$venv/bin/python3" -c 'import torch' 2>/dev/null ||
    die "expected an environment without torch, but $venv has one"
  expect_ranks "wheel, Python" "${alone[@]}" ddprun --nproc-per-node=2 --no-python \
    python3 -c 'import os; print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])'
  expect_two_hosts

  as_root install build/wheel/ddprun "$root/usr/local/bin/ddprun"
  expect_ranks "bare file, Debian $(cat "$root/etc/debian_version")" \
    as_root timeout 120 chroot "$root" ddprun --nproc-per-node=2 sh -c 'echo rank $RANK of $WORLD_SIZE'
}
