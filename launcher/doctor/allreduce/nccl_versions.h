#pragma once

namespace launcher {

/// As NCCL numbers them (22809 is 2.28.9); 0 where LibTorch has no CUDA.
struct NcclVersions {
  int loaded = 0;
  int built = 0;
};

NcclVersions nccl_versions();

}  // namespace launcher
