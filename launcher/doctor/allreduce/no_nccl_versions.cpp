#include "launcher/doctor/allreduce/nccl_versions.h"

namespace launcher {

NcclVersions nccl_versions() {
  return {};
}

}  // namespace launcher
