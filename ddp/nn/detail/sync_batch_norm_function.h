#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Buffers for the running statistics; undefined if there are none.
struct RunningStatistics {
  at::Tensor mean;
  at::Tensor var;
  double factor = 0;  ///< weight of the new batch
};

/// Arguments of one forward of a `SyncBatchNorm`.
struct SyncBatchNormCall {
  c10::intrusive_ptr<c10d::Backend> group;
  at::Tensor weight;  ///< may be undefined, as the bias
  at::Tensor bias;
  RunningStatistics running;
  double eps = 0;
  int64_t channels = 0;
  c10::ScalarType type = c10::kFloat;  ///< dtype of exchanged data
};

/// Returns the dtype of the statistics of inputs of a dtype.
c10::ScalarType statistics_type(c10::ScalarType input);

/// Computes the batch norm of `input` over the ranks' batches. Collective, and
/// so is its backward pass if the input needs a gradient.
/// @throws c10::Error if this rank has a problem. On the CPU also on every rank
///   if another rank has a problem, or if all ranks together have only one
///   value per channel.
at::Tensor sync_batch_norm(const at::Tensor& input,
                           const SyncBatchNormCall& call);

}  // namespace ddp::detail
