# Sourced by try: creates a LibTorch without CUDA. PyPI has such a wheel for
# macOS only. The script combines its headers and CMake files with the CPU
# libraries of the Linux wheel of the same version and commit. Compiler and
# linker then see a build without CUDA, and no CUDA library is named.

DDP_CPU_ROOT="$DDP_CACHE/torch-cpu-$TORCH_VERSION"
DDP_CPU_LIBTORCH="$DDP_CPU_ROOT/torch"

download_macos_wheel() {
  downloading "$DDP_VENV/bin/pip" download --quiet --disable-pip-version-check \
    --no-cache-dir --no-deps --only-binary=:all: --platform macosx_11_0_arm64 \
    --dest "$1" "torch==$TORCH_VERSION"
}

install_cpu_libtorch() {
  local linux partial="$DDP_CPU_ROOT.partial" library
  if [ -e "$DDP_CPU_LIBTORCH" ]; then
    say "LibTorch without CUDA: $TORCH_VERSION is in $DDP_CPU_LIBTORCH"
    return
  fi
  [ -x "$DDP_VENV/bin/pip" ] || install_venv
  linux="$(torch_of_python "$DDP_VENV/bin/python3")"
  say "LibTorch without CUDA: making $TORCH_VERSION in $DDP_CPU_LIBTORCH"
  rm -rf "$partial"
  mkdir -p "$partial/wheel" "$partial/torch/lib"
  download_macos_wheel "$partial/wheel"
  python3 -m zipfile -e "$partial"/wheel/*.whl "$partial/wheel"
  [ "$(sed -n 's/^git_version = //p' "$partial/wheel/torch/version.py")" = \
    "$(sed -n 's/^git_version = //p' "$linux/version.py")" ] ||
    die "expected both wheels of torch $TORCH_VERSION to be of one commit, but they are not"
  mv "$partial/wheel/torch/include" "$partial/wheel/torch/share" "$partial/torch"
  sed -i 's/\.dylib/.so/g; s|@rpath/||g' \
    "$partial/torch/share/cmake/Caffe2/Caffe2Targets-release.cmake"
  for library in "$linux"/lib/{libc10.so,libtorch_cpu.so,libgomp*}; do
    [ ! -e "$library" ] || ln -s "$library" "$partial/torch/lib/"
  done
  # libtorch_cpu.so also searches for libraries beside its wheel.
  ln -s "$linux/../nvidia" "$partial/nvidia"
  # The libtorch.so of the wheel needs libtorch_cuda.so, so build another one.
  "${CXX:-c++}" -shared -x c++ /dev/null -o "$partial/torch/lib/libtorch.so" \
    -Wl,-soname,libtorch.so -Wl,--no-as-needed \
    -L"$linux/lib" -ltorch_cpu -lc10
  rm -rf "$partial/wheel"
  mv "$partial" "$DDP_CPU_ROOT"
}
