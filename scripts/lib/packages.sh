# Sourced by setup: Debian's and Ubuntu's packages.

DDP_PACKAGES=(g++ cmake ninja-build ccache python3 python3-venv catch2
  libspdlog-dev libcli11-dev libgloo-dev nlohmann-json3-dev zlib1g-dev)

missing_packages() {
  local package
  for package in "${DDP_PACKAGES[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null |
      grep -q 'ok installed' || printf '%s\n' "$package"
  done
}

install_packages() {
  if ! command -v apt-get >/dev/null; then
    say "no apt-get: CMake >= 3.22, Ninja, a C++20 compiler and python3 are expected on PATH; header packages come by FetchContent"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages)
  if [ "${#missing[@]}" -eq 0 ]; then
    say "packages: all there"
    return
  fi
  say "packages: installing ${missing[*]} by apt-get into the system"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends "${missing[@]}" >/dev/null
}
