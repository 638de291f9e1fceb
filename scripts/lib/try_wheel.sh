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

# Prints two free ports of this host.
free_ports() {
  python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in sockets))'
}

# Starts etcd on loopback for two ddpruns, as if they were two hosts.
expect_etcd() {
  local client peer end=$((SECONDS + 30))
  read -r client peer < <(free_ports)
  etcd --data-dir="$folder/etcd" --unsafe-no-fsync \
    --listen-client-urls="http://127.0.0.1:$client" \
    --advertise-client-urls="http://127.0.0.1:$client" \
    --listen-peer-urls="http://127.0.0.1:$peer" \
    --initial-advertise-peer-urls="http://127.0.0.1:$peer" \
    --initial-cluster="default=http://127.0.0.1:$peer" >"$folder/etcd.log" 2>&1 &
  etcd_pid=$!
  until ETCDCTL_API=3 etcdctl --endpoints="127.0.0.1:$client" endpoint health \
    >/dev/null 2>&1; do
    ((SECONDS < end)) || die "etcd does not answer: $(tail -n 3 "$folder/etcd.log")"
    sleep 0.2
  done
  expect_ranks "wheel, etcd" "${alone[@]}" bash -c '
    host() {
      ddprun --nnodes=2 --nproc-per-node=1 --rdzv-backend=etcd --rdzv-id=wheel \
        --rdzv-endpoint="127.0.0.1:$0" sh -c "echo rank \$RANK of \$WORLD_SIZE"
    }
    host & host && wait $!' "$client"
}

# try_wheel [ROOT]
try_wheel() {
  local root venv missing
  root="$(realpath -m "${1:-$DDP_CACHE/bullseye}")"
  install_packages debootstrap debian-archive-keyring
  install_etcd
  [ -x build/release/bin/hello ] || { ./scripts/setup --no-build && ./scripts/build release hello; }
  ./scripts/wheel
  make_bullseye "$root"

  folder="$(mktemp -d)"
  etcd_pid=""
  trap 'kill $etcd_pid 2>/dev/null || true; rm -rf "$folder"' EXIT
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
  expect_etcd

  as_root install build/wheel/ddprun "$root/usr/local/bin/ddprun"
  expect_ranks "bare file, Debian $(cat "$root/etc/debian_version")" \
    as_root timeout 120 chroot "$root" ddprun --nproc-per-node=2 sh -c 'echo rank $RANK of $WORLD_SIZE'
  missing="$(as_root env DDPRUN_TOKEN=wheel chroot "$root" ddprun --nnodes=2 \
    --rdzv-backend=etcd --rdzv-id=wheel --rdzv-endpoint=127.0.0.1:1 true 2>&1)" &&
    die "expected an error for etcd without libcurl, but got: $missing"
  grep -q "cannot load libcurl.*apt-get install libcurl4" <<<"$missing" ||
    die "expected the advice to install libcurl, but got: $missing"
  say "bare file, etcd without libcurl: $missing"
}
