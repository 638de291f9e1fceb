# Sourced by the scripts: paths, output and other common functions.

say() { printf '== %s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

[ -n "${XDG_CACHE_HOME:-}${HOME:-}" ] ||
  die "expected HOME or XDG_CACHE_HOME, a folder for downloads, but neither is set"
# Downloads are shared by all clones.
DDP_CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/ddp-libtorch"
DDP_VENV="$DDP_CACHE/venv"
DDP_WHEEL_TOOLS="$DDP_CACHE/wheel-tools"

# Prints the number of parallel build jobs. One compiler process needs up to 2.5
# GB for LibTorch's headers.
build_jobs() {
  local cores memory
  cores="$(nproc)"
  memory="$(awk '/MemTotal/ {print int($2 / 2500000)}' /proc/meminfo)"
  memory="$((memory / ${DDP_PRESETS_AT_ONCE:-1}))"
  printf '%s\n' "$((memory < 1 ? 1 : memory < cores ? memory : cores))"
}

# install_tools_of_pypi VENV PACKAGE ...: makes the virtual environment, unless it
# is there, and installs packages into it.
install_tools_of_pypi() {
  [ -x "$1/bin/pip" ] || python3 -m venv "$1"
  "$1/bin/python3" -m pip install --quiet --disable-pip-version-check "${@:2}"
}

# Runs a command as root, with sudo if necessary; sudo must not ask for a
# password.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo -n "$@"
  else
    die "$*: needs root or sudo"
  fi
}

# Runs a command under a lock that all clones share.
with_lock() {
  local lock="$DDP_CACHE/$1.lock"
  shift
  mkdir -p "$DDP_CACHE"
  (
    flock 9
    "$@"
  ) 9>"$lock"
}

# downloading COMMAND ...: runs a download and adds its duration in seconds to
# the file in which ./scripts/test counts downloads.
downloading() {
  local start="$SECONDS" status=0
  "$@" || status=$?
  [ -z "${DDP_DOWNLOADS:-}" ] ||
    printf '%s\n' "$((SECONDS - start))" >>"$DDP_DOWNLOADS"
  return "$status"
}

# Prints the C++ files of the project, including new files. Uses find if there
# is no git (in a tarball). Omits deleted files, which git still lists.
sources() {
  local file
  { git ls-files --cached --others --exclude-standard '*.cpp' '*.h' 2>/dev/null ||
    find ddp dp launcher samples test -name '*.cpp' -o -name '*.h'; } |
    while read -r file; do
      if [ -e "$file" ]; then printf '%s\n' "$file"; fi
    done
}
