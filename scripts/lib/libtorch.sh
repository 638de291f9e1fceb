# Sourced by setup: finds the user's LibTorch, or installs the PyPI wheel.

TORCH_VERSION=2.11.0

# Succeeds if the folder contains LibTorch 2.11 or newer.
is_libtorch() {
  local version
  version="$(sed -n 's/^set(PACKAGE_VERSION "\([0-9.]*\).*/\1/p' \
    "$1/share/cmake/Torch/TorchConfigVersion.cmake" 2>/dev/null)" || return 1
  [ -n "$version" ] &&
    [ "$(printf '2.11\n%s\n' "$version" | sort -V | head -n 1)" = 2.11 ]
}

# Prints the folder of the torch package that a Python would import.
torch_of_python() {
  "$1" -c 'import importlib.util as u, os; s = u.find_spec("torch")
print(os.path.dirname(s.origin)) if s and s.origin else None' 2>/dev/null
}

# Prints the folder of the user's own LibTorch, with the search order of CMake.
own_libtorch() {
  local folder name
  local -a folders=()
  [ -n "${Torch_DIR:-}" ] && folders+=("$Torch_DIR/../../..")
  IFS=':;' read -r -a prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for folder in "${prefixes[@]}"; do
    folders+=("$folder" "$folder/../..") # torch.utils.cmake_prefix_path
  done
  folders+=("$(torch_of_python python3 || true)")
  for folder in "${folders[@]}"; do
    if [ -n "$folder" ] && is_libtorch "$folder"; then
      realpath "$folder"
      return
    fi
  done
  for name in Torch_DIR CMAKE_PREFIX_PATH; do
    [ -z "${!name:-}" ] ||
      say "LibTorch: $name=${!name} is not taken, expected version 2.11 or newer there" >&2
  done
  return 1
}

# install_wheels VENV REQUIREMENT ...: downloads first, so that the download
# time is counted, then installs. Omits the packages that only torch.compile
# needs, a seventh of all bytes.
install_wheels() {
  local venv="$1" wheels="$1/wheels"
  shift
  downloading "$venv/bin/pip" download --quiet --disable-pip-version-check \
    --no-cache-dir --dest "$wheels" "$@" ||
    die "expected to download $1 by pip, but cannot; with a LibTorch on this machine, set CMAKE_PREFIX_PATH=FOLDER of it and run again"
  rm -f "$wheels"/triton-*.whl
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-index \
    --no-deps --no-compile "$wheels"/*.whl
  rm -rf "$wheels"
}

# make_byte_code VENV: compiles the modules that tests and benchmarks import.
# Compiling all modules would take half a minute; without byte code, each import
# takes two seconds longer.
make_byte_code() {
  env -u PYTHONDONTWRITEBYTECODE CUDA_VISIBLE_DEVICES= "$1/bin/python3" -c '
import torch, torch.distributed.run, torch.nn.parallel, torch.utils.checkpoint
import torch.distributed.optim
import torch.distributed.algorithms.ddp_comm_hooks.default_hooks
import torch.distributed.algorithms.model_averaging.averagers
import torch.utils.data'
}

install_venv() {
  local done_mark="$DDP_VENV/.torch-$TORCH_VERSION"
  if [ -e "$done_mark" ]; then
    say "LibTorch: $TORCH_VERSION is in $DDP_VENV"
    return
  fi
  say "LibTorch: installing the wheel torch==$TORCH_VERSION into $DDP_VENV (about 5 GB)"
  # Without the mark the installation is incomplete.
  rm -rf "$DDP_VENV"
  python3 -m venv "$DDP_VENV"
  install_wheels "$DDP_VENV" "torch==$TORCH_VERSION" numpy
  make_byte_code "$DDP_VENV"
  touch "$done_mark"
}

# Installs a package for a test, $1, into the project's own environment. A user's
# own Python is not modified, and only test runs install it. $2: the consequence
# of a failure.
install_for_test() {
  local python="$DDP_VENV/bin/python3"
  if [ -x "$python" ] && ! "$python" -c "import $1" 2>/dev/null; then
    say "$1: installing it into $DDP_VENV"
    downloading "$python" -m pip install --quiet --disable-pip-version-check \
      --no-cache-dir --no-compile "$1" ||
      say "$1: not there, so $2"
  fi
}

install_matplotlib() {
  install_for_test matplotlib "plot_test makes no pictures"
}

# PyTorch reads sharded checkpoints with it.
install_safetensors() {
  install_for_test safetensors "parity_test reads no sharded checkpoints"
}

# Sets LIBTORCH to the folder of the LibTorch to use.
install_libtorch() {
  if LIBTORCH="$(own_libtorch)"; then
    say "LibTorch: yours, in $LIBTORCH"
    return
  fi
  with_lock venv install_venv
  LIBTORCH="$(torch_of_python "$DDP_VENV/bin/python3")"
}
