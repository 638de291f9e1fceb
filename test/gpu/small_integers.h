#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include "test/gpu/nccl_ranks.h"

// Returns integers that the narrow dtypes represent exactly, as well as their
// sums.
namespace ddp::test {

inline torch::Tensor small_integers(at::IntArrayRef sizes,
                                    int64_t seed,
                                    int64_t most) {
  const auto places = torch::arange(c10::multiply_integers(sizes));
  return (places * 7 + seed)
      .remainder(2 * most + 1)
      .sub(most)
      .to(torch::kFloat)
      .view(sizes);
}

inline void fill_with_small_integers(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  int64_t seed = 0;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(small_integers(parameter.sizes(), seed++, 1));
  }
}

/// Returns the 4 rows of one of 2 ranks, of 8 rows, on the rank's GPU.
inline torch::Tensor half_of(const torch::Tensor& all, const NcclRank& rank) {
  return all.slice(0, 4 * rank.rank, 4 * rank.rank + 4).to(rank.device);
}

}  // namespace ddp::test
