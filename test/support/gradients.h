#pragma once

#include <torch/types.h>

#include "ddp/reducer.h"

// Functions shared by tests of exchanges.
namespace ddp::test {

/// Returns 1 + 2 + ... + n.
inline double gauss(int n) {
  return n * (n + 1) / 2.0;
}

inline torch::Tensor leaf(at::IntArrayRef sizes,
                          torch::TensorOptions options = torch::kFloat) {
  return torch::ones(sizes, options).requires_grad_();
}

/// Runs a backward pass with gradient reduction.
inline void backward(Reducer& reducer, const torch::Tensor& loss) {
  loss.backward();
}

inline bool all_equal(const torch::Tensor& tensor, double value) {
  return tensor.cpu().eq(value).all().item<bool>();
}

}  // namespace ddp::test
