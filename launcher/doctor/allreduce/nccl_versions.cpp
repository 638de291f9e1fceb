#include "launcher/doctor/allreduce/nccl_versions.h"

#include <dlfcn.h>
#include <nccl.h>

namespace launcher {

NcclVersions nccl_versions() {
  NcclVersions versions;
  versions.built = NCCL_VERSION_CODE;
  // LibTorch has loaded it; we are not linked to it.
  const auto get = reinterpret_cast<decltype(&::ncclGetVersion)>(
      ::dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  if (get == nullptr || get(&versions.loaded) != ncclSuccess) {
    return {};
  }
  return versions;
}

}  // namespace launcher
