# Sourced by the scripts: installs packages of Debian and Ubuntu.

DDP_PACKAGES=(g++ cmake ninja-build ccache python3 python3-venv catch2
  libspdlog-dev libcli11-dev libgloo-dev nlohmann-json3-dev zlib1g-dev)

# missing_packages PACKAGE ...: prints the packages that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null |
      grep -q 'ok installed' || printf '%s\n' "$package"
  done
}

# go_on_without PACKAGE ...: for users who may not install packages. The header
# packages have other sources, programs have none.
go_on_without() {
  local program
  for program in c++ cmake ninja python3; do
    command -v "$program" >/dev/null ||
      die "expected $program, or the right to install it (root, sudo without a password); ask for the packages: $*"
  done
  say "packages: $* are missing and need root to install; going on, CMake takes header packages from the folder DDP_HEADERS_DIR (./scripts/pack-headers fills one) or downloads them"
}

# install_packages [PACKAGE ...]: installs the given packages. Default: the
# packages that every build needs.
install_packages() {
  [ $# -gt 0 ] || set -- "${DDP_PACKAGES[@]}"
  if ! command -v apt-get >/dev/null; then
    say "no apt-get: CMake >= 3.22, Ninja, a C++20 compiler and python3 are expected on PATH; header packages come from the folder DDP_HEADERS_DIR (./scripts/pack-headers fills one) or by download"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  if [ "${#missing[@]}" -eq 0 ]; then
    say "packages: all there"
    return
  fi
  if [ "$(id -u)" -ne 0 ] && ! sudo -n true 2>/dev/null; then
    go_on_without "${missing[@]}"
    return
  fi
  say "packages: installing ${missing[*]} by apt-get into the system"
  local install=(as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y
    -qq --no-install-recommends)
  downloading as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  downloading "${install[@]}" --download-only "${missing[@]}" >/dev/null
  "${install[@]}" "${missing[@]}" >/dev/null
}

# Installs Clang, of any version that supports C++20, and its linker.
install_clang() {
  { command -v clang++ && command -v ld.lld; } >/dev/null || install_packages clang lld
  command -v clang++ >/dev/null || die "expected clang++ on PATH, but it is not there: install Clang 14 or newer"
}

# Installs nft, with which a test of the launcher drops packets. Without nft the
# test omits this fault.
install_nft() {
  command -v nft >/dev/null || install_packages nftables
}

# Installs Slurm, Open MPI and MPICH, under which ddprun_schedulers_test starts
# jobs, and the compilers of both MPI libraries, without starting their services: Debian's policy-rc.d forbids the start.
install_schedulers() {
  { command -v slurmctld && command -v slurmd && command -v srun &&
    command -v mpirun.openmpi && command -v mpirun.mpich &&
    command -v mpicxx.openmpi && command -v mpicxx.mpich; } >/dev/null && return
  local policy=/usr/sbin/policy-rc.d own="" status=0
  if [ ! -e "$policy" ]; then
    own=yes
    printf '#!/bin/sh\nexit 101\n' | as_root install -m 755 /dev/stdin "$policy"
  fi
  install_packages slurmctld slurmd slurm-client openmpi-bin mpich \
    libopenmpi-dev libmpich-dev || status=$?
  [ -z "$own" ] || as_root rm -f "$policy"
  return "$status"
}

# tool_of_llvm NAME: installs clang-format or clang-tidy if it is missing and
# prints its command. Requires version 14, because the results of other versions
# differ.
tool_of_llvm() {
  command -v "$1-14" >/dev/null || install_packages "$1-14" >&2
  command -v "$1-14" || die "expected $1-14 on PATH, but it is not there: install it"
}
