#pragma once

namespace launcher {

/// Versions of NCCL in its own format (22809 is 2.28.9); 0 if LibTorch has no
/// CUDA.
struct NcclVersions {
  int loaded = 0;
  int built = 0;
};

NcclVersions nccl_versions();

}  // namespace launcher
