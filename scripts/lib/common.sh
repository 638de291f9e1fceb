# Sourced by the scripts: where things are, and how they speak.

# What is downloaded is shared by all clones.
DDP_CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/ddp-libtorch"
DDP_VENV="$DDP_CACHE/venv"

say() { printf '== %s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# A compiler at work on LibTorch's headers takes up to 2.5 GB.
build_jobs() {
  local cores memory
  cores="$(nproc)"
  memory="$(awk '/MemTotal/ {print int($2 / 2500000)}' /proc/meminfo)"
  memory="$((memory / ${DDP_PRESETS_AT_ONCE:-1}))"
  printf '%s\n' "$((memory < 1 ? 1 : memory < cores ? memory : cores))"
}

# Packages need root; elsewhere sudo, which must not ask.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo -n "$@"
  else
    die "run as root, or install sudo, or install by hand: $*"
  fi
}

# Runs a command while no other clone runs one under the same lock.
with_lock() {
  local lock="$DDP_CACHE/$1.lock"
  shift
  mkdir -p "$DDP_CACHE"
  (
    flock 9
    "$@"
  ) 9>"$lock"
}

# downloading COMMAND ...: runs it; its seconds go into the file that
# ./scripts/test counts downloads in.
downloading() {
  local start="$SECONDS" status=0
  "$@" || status=$?
  [ -z "${DDP_DOWNLOADS:-}" ] ||
    printf '%s\n' "$((SECONDS - start))" >>"$DDP_DOWNLOADS"
  return "$status"
}

# The C++ files of the project, those that are new, too; a tarball has no git, and git
# names files that are deleted, too.
sources() {
  local file
  { git ls-files --cached --others --exclude-standard '*.cpp' '*.h' 2>/dev/null ||
    find ddp dp launcher samples test -name '*.cpp' -o -name '*.h'; } |
    while read -r file; do
      if [ -e "$file" ]; then printf '%s\n' "$file"; fi
    done
}
