#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Buffers for the running statistics; undefined if there are none.
struct RunningStatistics {
  at::Tensor mean;
  at::Tensor var;
  double factor = 0;  ///< weight of the new batch
};

/// Statistics of a batch that is spread over several ranks.
struct BatchStatistics {
  at::Tensor mean;    ///< mean of each channel
  at::Tensor invstd;  ///< 1 / sqrt(variance + eps)
  at::Tensor counts;  ///< values per channel, by rank
};

/// Sums for the gradients, computed from one rank's part of the batch.
struct GradientSums {
  at::Tensor shared;  ///< sum of dy, then of dy * (x - mean), by channel
  at::Tensor weight;  ///< this rank's gradients
  at::Tensor bias;
};

/// The arithmetic of a batch norm over several ranks, for one kind of device.
/// The ranks communicate between its steps: first one row each, then the sums.
/// Inputs have their channels in dimension 1; statistics are of
/// `statistics_type`. Call without grad mode.
class BatchNormMath {
 public:
  /// Count in the row of a rank with an invalid input, for checks by the other
  /// ranks.
  static constexpr double kWrong = -1;

  virtual ~BatchNormMath() = default;

  /// Returns this rank's row of 2 * channels + 1 elements: mean of each
  /// channel, spread of each channel, count. `input` must not be empty.
  virtual at::Tensor row_of(const at::Tensor& input, double eps) const = 0;

  /// Returns the row of a rank without values or, if `is_wrong`, with an
  /// invalid input.
  virtual at::Tensor row_of_none(int64_t channels,
                                 const at::TensorOptions& options,
                                 bool is_wrong) const = 0;

  /// Combines the rows of all ranks, with the same result on each rank, and
  /// updates the running statistics.
  /// @param rows  ranks x (2 * channels + 1), at least one of them with values.
  virtual BatchStatistics combine(const at::Tensor& rows,
                                  const RunningStatistics& running,
                                  double eps) const = 0;

  /// Returns (input - mean) * invstd * weight + bias, in the input's dtype.
  virtual at::Tensor normalise(const at::Tensor& input,
                               const at::Tensor& weight,
                               const at::Tensor& bias,
                               const BatchStatistics& statistics,
                               double eps) const = 0;

  /// Returns this rank's sums for the gradients of all ranks.
  virtual GradientSums sums_of(const at::Tensor& grad_output,
                               const at::Tensor& input,
                               const at::Tensor& weight,
                               const BatchStatistics& statistics) const = 0;

  /// Returns the gradient of the input.
  /// @param shared  sum of `GradientSums::shared` over the ranks.
  virtual at::Tensor input_gradient(const at::Tensor& grad_output,
                                    const at::Tensor& input,
                                    const at::Tensor& weight,
                                    const BatchStatistics& statistics,
                                    const at::Tensor& shared) const = 0;
};

/// Returns the implementation with LibTorch's kernels for CUDA, otherwise the
/// one with its operators.
const BatchNormMath& batch_norm_math(c10::Device device);

/// Returns the dtype in which statistics of this input are computed and
/// exchanged: double for double, otherwise float.
c10::ScalarType statistics_type(c10::ScalarType input);

}  // namespace ddp::detail
