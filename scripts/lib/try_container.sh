# Sourced by try: builds the image of samples/cluster/Containerfile and runs it
# as Kubernetes does, with Docker or Podman.

# Prints a container engine that runs, and installs Podman if there is none.
container_engine() {
  local engine
  for engine in docker podman; do
    if "$engine" info >/dev/null 2>&1; then
      printf '%s\n' "$engine"
      return
    fi
  done
  install_packages podman runc >&2
  podman info >/dev/null || die "expected Docker or Podman, but neither runs"
  printf 'podman\n'
}

# base_image ENGINE: prints the name of a Debian 12 image. Makes one of the
# packages of apt's mirror if no registry can be reached.
base_image() {
  local engine="$1" name=debian:bookworm-slim own=localhost/ddp-bookworm root
  if "$engine" image inspect "$own" >/dev/null 2>&1; then
    name="$own"
  elif ! "$engine" pull "$name" >/dev/null 2>&1; then
    name="$own"
    say "base image: no registry, making $own by debootstrap" >&2
    install_packages debootstrap >&2
    root="$(mktemp -d)"
    as_root debootstrap --variant=minbase bookworm "$root" >&2
    as_root tar -C "$root" -c . | "$engine" import - "$own" >/dev/null
    as_root rm -rf "$root"
  fi
  printf '%s\n' "$name"
}

# in_image ARGUMENT ...: runs the image like a pod of the restricted security
# standard with a read-only root file system. Podman's own limits exceed the
# limits of a machine that is a container itself.
in_image() {
  "$engine" run --rm --network none --read-only --tmpfs /tmp --cap-drop ALL \
    --security-opt no-new-privileges --ulimit nofile=4096:4096 \
    --ulimit nproc=4096:4096 "$@"
}

# Sets `options` for Podman: the build has the machine's network, and trusts the
# certificates that the machine's pip trusts.
podman_options() {
  local settings="$1" certificates
  options=(--isolation chroot --network host)
  certificates="$(python3 -m pip config list 2>/dev/null |
    sed -n "s/^[^=]*\.cert='\(.*\)'$/\1/p" | tail -n 1)"
  [ -n "$certificates" ] || return 0
  printf '[global]\ncert = /etc/pip.crt\n' >"$settings"
  options+=(--volume "$settings:/etc/pip.conf:ro"
    --volume "$certificates:/etc/pip.crt:ro")
}

try_container() {
  local engine base
  local -a options=()
  engine="$(container_engine)"
  base="$(base_image "$engine")"
  if [ "$engine" = podman ]; then
    TRY_PIP_SETTINGS="$(mktemp)"
    trap 'rm -f "$TRY_PIP_SETTINGS"' EXIT
    podman_options "$TRY_PIP_SETTINGS"
  fi
  say "$engine build: $base"
  "$engine" build "${options[@]}" --build-arg "BASE=$base" -t ddp-train \
    -f samples/cluster/Containerfile .
  in_image ddp-train sh -c 'id
    for program in c++ g++ cc gcc ld; do ! command -v "$program" || exit 1; done' ||
    die "expected no compiler in the image"
  in_image ddp-train ddprun --nproc-per-node=2 hello
  in_image ddp-train ddprun --nproc-per-node=2 train --epochs=1 \
    --checkpoint=/tmp/train
  say "another uid, group 0, as under OpenShift"
  in_image --user 1000730000:0 ddp-train ddprun --nproc-per-node=2 train \
    --epochs=1
}
