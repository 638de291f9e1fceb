# Sourced by setup: finds the machine's CUDA Toolkit, or installs one from pip
# packages. LibTorch's CMake package requires nvcc, although this project
# compiles no file with it.

CUDA_VERSION=13.0.2 # required by torch 2.11.0; its [nvcc,...] extras match
DDP_CUDA="$DDP_CACHE/cuda"

own_nvcc() {
  PATH="$PATH:${CUDA_HOME:-/nowhere}/bin:${CUDA_PATH:-/nowhere}/bin:/usr/local/cuda/bin" \
    command -v "${CUDACXX:-nvcc}"
}

# pip's packages lack lib64, the unversioned names of libraries, and the headers
# of the libraries that are part of LibTorch's wheel. Creates links for all of
# them.
link_toolkit() {
  local root="$1" beside_torch="$2" file name
  mkdir "$root/lib64"
  for file in "$root"/lib/*.{so.*,a}; do
    name="$(basename "$file")"
    ln -s "../lib/$name" "$root/lib64/$name"
    [[ "$name" == *.a ]] || ln -sf "../lib/$name" "$root/lib64/${name%%.so.*}.so"
  done
  for file in "$beside_torch"/include/*; do
    [ -e "$root/include/${file##*/}" ] || ln -s "$file" "$root/include/"
  done
}

install_pip_toolkit() {
  local beside_torch="$1" partial="$DDP_CACHE/cuda.partial"
  if [ -e "$DDP_CUDA/bin/nvcc" ]; then
    say "CUDA Toolkit: pip's $CUDA_VERSION is in $DDP_CUDA"
    return
  fi
  say "CUDA Toolkit: installing pip's cuda-toolkit==$CUDA_VERSION into $DDP_CUDA (about 0.3 GB)"
  rm -rf "$partial"
  python3 -m venv "$partial/pip"
  "$partial/pip/bin/pip" install --quiet --disable-pip-version-check \
    --no-cache-dir --target "$partial/site" \
    "cuda-toolkit[nvcc,nvvm,crt,cccl,cudart]==$CUDA_VERSION"
  link_toolkit "$partial/site/nvidia/cu13" "$beside_torch"
  # Move the folder only when it is complete.
  rm -rf "$DDP_CUDA"
  mv "$partial/site/nvidia/cu13" "$DDP_CUDA"
  rm -rf "$partial"
}

install_cuda() {
  local nvcc
  if [ ! -e "$LIBTORCH/lib/libtorch_cuda.so" ]; then
    say "CUDA Toolkit: not needed, this LibTorch is for the CPU"
  elif nvcc="$(own_nvcc)"; then
    say "CUDA Toolkit: yours, $nvcc"
  elif [ -e "$LIBTORCH/../nvidia/cu13/include/cublas_v2.h" ]; then
    with_lock cuda install_pip_toolkit "$(realpath "$LIBTORCH/../nvidia/cu13")"
  else
    die "expected a CUDA Toolkit for the LibTorch in $LIBTORCH, but found no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda: install the toolkit of the version that LibTorch was built with"
  fi
}
