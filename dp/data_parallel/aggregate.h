#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/types.h>

namespace dp {

/// The tensors that the replicas returned at one position of their results, for
/// example in the second element of a tuple.
struct Parts {
  /// One for each replica that computed, on the output device; not empty.
  std::vector<torch::Tensor> tensors;
  /// Number of rows of the first input tensor that each replica processed. 0 if
  /// the inputs contain no tensor or no row; then only the first device
  /// computes.
  std::vector<int64_t> samples;
  int64_t dim = 0;  ///< `DataParallelOptions::dim`
};

/// Combines the replicas' tensors into the single tensor that the wrapper
/// returns. Its operations are recorded by autograd. A wrapper with one device
/// or none never calls the function.
///
/// Example:
/// @code
///   dp::DataParallel model(
///       net, dp::DataParallelOptions().aggregate([](const dp::Parts& parts) {
///         return torch::stack(parts.tensors).amax(0);
///       }));
/// @endcode
using Aggregate = std::function<torch::Tensor(const Parts& parts)>;

/// Concatenates the parts along `parts.dim`. The rows of the result have the
/// order of the input rows. Scalars become a vector with one element per
/// replica, and a warning is logged, as in PyTorch.
/// @throws c10::Error if the sizes differ in a dimension other than `dim`, or
///   if the tensors have no dimension `dim`.
torch::Tensor concatenate(const Parts& parts);

/// Returns the sum of the parts.
/// @throws c10::Error if their sizes differ.
torch::Tensor sum(const Parts& parts);

/// Returns the mean of the parts, weighted by the number of their samples. If
/// each part is the mean loss of its rows, the result is the mean loss of the
/// whole batch, however the batch was split. A single part is returned as it
/// is.
/// @throws c10::Error if the sizes differ, or if there are several parts and
///   the first one is integral or bool.
torch::Tensor mean(const Parts& parts);

}  // namespace dp
