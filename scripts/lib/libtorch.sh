# Sourced by setup: LibTorch of the user's, else of the PyPI wheel.

TORCH_VERSION=2.11.0

# True when the user has a LibTorch that CMake will find by itself.
has_own_libtorch() {
  [ -n "${Torch_DIR:-}" ] && return 0
  local prefix
  local prefixes="${CMAKE_PREFIX_PATH:-}"
  for prefix in ${prefixes//[:;]/ }; do
    [ -e "$prefix/share/cmake/Torch/TorchConfig.cmake" ] && return 0
  done
  python3 - <<'PYTHON' 2>/dev/null
import importlib.metadata as metadata
version = tuple(int(part) for part in metadata.version("torch").split("+")[0].split(".")[:2])
raise SystemExit(0 if version >= (2, 11) else 1)
PYTHON
}

install_venv() {
  local done_mark="$DDP_VENV/.torch-$TORCH_VERSION"
  if [ -e "$done_mark" ]; then
    say "LibTorch: $TORCH_VERSION is in $DDP_VENV"
    return
  fi
  say "LibTorch: installing the wheel torch==$TORCH_VERSION into $DDP_VENV (about 5 GB)"
  # Without the mark whatever is there is half an installation.
  rm -rf "$DDP_VENV"
  python3 -m venv "$DDP_VENV"
  "$DDP_VENV/bin/pip" install --quiet --disable-pip-version-check \
    "torch==$TORCH_VERSION" numpy
  touch "$done_mark"
}

install_libtorch() {
  if has_own_libtorch; then
    say "LibTorch: yours"
    return
  fi
  with_lock venv install_venv
}
