#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// The buffers that a batch's statistics go into; undefined for none.
struct RunningStatistics {
  at::Tensor mean;
  at::Tensor var;
  double factor = 0;  ///< weight of the new batch
};

/// Of a batch that lies on several ranks.
struct BatchStatistics {
  at::Tensor mean;    ///< of each channel
  at::Tensor invstd;  ///< 1 / sqrt(variance + eps)
  at::Tensor counts;  ///< values a channel, by rank
};

/// What a rank adds to the gradients of all.
struct GradientSums {
  at::Tensor shared;  ///< sum of dy, then of dy * (x - mean), by channel
  at::Tensor weight;  ///< this rank's gradients
  at::Tensor bias;
};

/// The arithmetic of a batch norm over several ranks, on one kind of device.
/// Between its steps ranks exchange: a row each, then the sums. Inputs have the
/// channels in dimension 1; statistics are of `statistics_type`. Without grad
/// mode.
class BatchNormMath {
 public:
  /// What the count of a rank whose input is wrong is, where the others look.
  static constexpr double kWrong = -1;

  virtual ~BatchNormMath() = default;

  /// This rank's row of 2 * channels + 1 elements: mean and spread of each
  /// channel, count. `input` is not empty.
  virtual at::Tensor row_of(const at::Tensor& input, double eps) const = 0;

  /// The row of a rank that has nothing to add, or whose input is wrong.
  virtual at::Tensor row_of_none(int64_t channels,
                                 const at::TensorOptions& options,
                                 bool is_wrong) const = 0;

  /// Of the rows of all ranks, the same on each; goes into the running ones.
  /// @param rows  ranks x (2 * channels + 1), with a value in one at least.
  virtual BatchStatistics combine(const at::Tensor& rows,
                                  const RunningStatistics& running,
                                  double eps) const = 0;

  /// (input - mean) * invstd * weight + bias, in the input's dtype.
  virtual at::Tensor normalise(const at::Tensor& input,
                               const at::Tensor& weight,
                               const at::Tensor& bias,
                               const BatchStatistics& statistics,
                               double eps) const = 0;

  virtual GradientSums sums_of(const at::Tensor& grad_output,
                               const at::Tensor& input,
                               const at::Tensor& weight,
                               const BatchStatistics& statistics) const = 0;

  /// @param shared  `GradientSums::shared` added up over ranks.
  virtual at::Tensor input_gradient(const at::Tensor& grad_output,
                                    const at::Tensor& input,
                                    const at::Tensor& weight,
                                    const BatchStatistics& statistics,
                                    const at::Tensor& shared) const = 0;
};

/// LibTorch's kernels for CUDA, else its operators.
const BatchNormMath& batch_norm_math(c10::Device device);

/// In which statistics of such an input are computed and exchanged: float, but
/// for double.
c10::ScalarType statistics_type(c10::ScalarType input);

}  // namespace ddp::detail
