#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/nn/detail/batch_norm_math.h"

namespace ddp::detail {

/// What a forward of a `SyncBatchNorm` is made with.
struct SyncBatchNormCall {
  c10::intrusive_ptr<c10d::Backend> group;
  at::Tensor weight;  ///< undefined for none; so is the bias
  at::Tensor bias;
  RunningStatistics running;
  double eps = 0;
  int64_t channels = 0;
  c10::ScalarType type = c10::kFloat;  ///< of what ranks exchange
  /// Why this rank cannot take part, one line; "" when it can.
  std::string problem;
};

/// The batch norm of `input` over the ranks' batches. Collective, and so is its
/// backward pass where the input needs a gradient.
/// @throws c10::Error when this rank or, on the CPU, another one has a problem,
///   or when there is one value a channel: on the CPU the same on every rank.
at::Tensor sync_batch_norm(const at::Tensor& input,
                           const SyncBatchNormCall& call);

}  // namespace ddp::detail
