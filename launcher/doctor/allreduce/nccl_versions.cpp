#include "launcher/doctor/allreduce/nccl_versions.h"

#include <dlfcn.h>
#include <nccl.h>
#include <torch/csrc/cuda/nccl.h>

namespace launcher {

NcclVersions nccl_versions() {
  NcclVersions versions;
  const auto built = torch::cuda::nccl::version();
  versions.built =
      static_cast<int>((built >> 32) * 10000 + ((built >> 16) & 0xffff) * 100 +
                       (built & 0xffff));
  // LibTorch has loaded NCCL; this program does not link it.
  const auto get = reinterpret_cast<decltype(&::ncclGetVersion)>(
      ::dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  if (get == nullptr || get(&versions.loaded) != ncclSuccess) {
    return {};
  }
  return versions;
}

}  // namespace launcher
