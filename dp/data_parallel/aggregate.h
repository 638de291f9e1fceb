#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/types.h>

namespace dp {

/// What the replicas returned in one place of their results.
struct Parts {
  std::vector<torch::Tensor> tensors;  ///< by replica, on the output device
  /// Rows of the first input tensor that each replica worked on; 0 without one.
  std::vector<int64_t> samples;
  int64_t dim = 0;  ///< `DataParallelOptions::dim`
};

/// Makes the one tensor that the wrapper returns of the replicas' tensors.
/// Autograd sees what it does.
///
/// Example:
/// @code
///   dp::DataParallel model(
///       net, dp::DataParallelOptions().aggregate([](const dp::Parts& parts) {
///         return torch::stack(parts.tensors).amax(0);
///       }));
/// @endcode
using Aggregate = std::function<torch::Tensor(const Parts& parts)>;

/// Joins the parts along `parts.dim`: the rows come out in the order in which
/// they went in. Scalars become a vector with one element a replica, with a
/// warning, as in PyTorch.
/// @throws c10::Error when sizes other than that of `dim` differ.
torch::Tensor concatenate(const Parts& parts);

/// Adds up the parts.
/// @throws c10::Error when their sizes differ.
torch::Tensor sum(const Parts& parts);

/// The mean of the parts, weighted by their samples: of mean losses of the
/// parts it is the mean loss of the whole batch, however that was split.
/// @throws c10::Error when their sizes differ, and for integers.
torch::Tensor mean(const Parts& parts);

}  // namespace dp
