#include "ddp/nn/detail/batch_norm_math.h"

#include <tuple>
#include <vector>

#include <ATen/Functions.h>

namespace ddp::detail {
namespace {

using at::Tensor;

/// Uses LibTorch's operators; the spread in a row is the variance.
class OperatorMath : public BatchNormMath {
 public:
  Tensor row_of(const Tensor& input, double /*eps*/) const override {
    const auto values = in_statistics_type(input);
    const auto [mean, var] = at::batch_norm_update_stats(values, {}, {}, 0);
    const auto count = at::full({1}, count_of(input), mean.options());
    return at::cat({mean, var, count});
  }

  Tensor row_of_none(int64_t channels,
                     const at::TensorOptions& options,
                     bool is_wrong) const override {
    auto row = at::zeros({2 * channels + 1}, options);
    row.narrow(0, 2 * channels, 1).fill_(is_wrong ? kWrong : 0);
    return row;
  }

  BatchStatistics combine(const Tensor& rows,
                          const RunningStatistics& running,
                          double eps) const override {
    // In double: few numbers per channel, and differences of means are squared.
    const auto exact = rows.to(at::kDouble);
    const int64_t channels = rows.size(1) / 2;
    const auto counts = exact.narrow(1, 2 * channels, 1);
    const double total = counts.sum().item<double>();
    const auto means = exact.narrow(1, 0, channels);
    const auto vars = exact.narrow(1, channels, channels);
    const auto shares = counts / total;
    const auto mean = (means * shares).sum(0);
    const auto var = ((vars + (means - mean).square()) * shares).sum(0);
    if (running.mean.defined()) {
      const auto unbiased = var * (total / (total - 1));
      move_to(running.mean, mean, running.factor);
      move_to(running.var, unbiased, running.factor);
    }
    return {mean.to(rows.scalar_type()),
            (var + eps).rsqrt().to(rows.scalar_type()),
            counts.flatten()};
  }

  Tensor normalise(const Tensor& input,
                   const Tensor& weight,
                   const Tensor& bias,
                   const BatchStatistics& statistics,
                   double eps) const override {
    // Uses the evaluation of LibTorch's own layer, which needs a variance.
    const auto var = statistics.invstd.pow(-2).sub(eps);
    return std::get<0>(at::native_batch_norm(input,
                                             in_statistics_type(weight),
                                             in_statistics_type(bias),
                                             statistics.mean,
                                             var,
                                             /*training=*/false,
                                             /*momentum=*/0,
                                             eps));
  }

  GradientSums sums_of(const Tensor& grad_output,
                       const Tensor& input,
                       const Tensor& /*weight*/,
                       const BatchStatistics& statistics) const override {
    const auto dy = in_statistics_type(grad_output);
    const auto centred =
        in_statistics_type(input) - channelwise(statistics.mean, input);
    const auto sum_dy = dy.sum(all_but_channels(input));
    const auto sum_dy_xmu = centred.mul_(dy).sum(all_but_channels(input));
    return {
        at::cat({sum_dy, sum_dy_xmu}), sum_dy_xmu * statistics.invstd, sum_dy};
  }

  Tensor input_gradient(const Tensor& grad_output,
                        const Tensor& input,
                        const Tensor& weight,
                        const BatchStatistics& statistics,
                        const Tensor& shared) const override {
    const auto& [mean, invstd, counts] = statistics;
    const auto means = shared / counts.sum().to(shared.scalar_type());
    const int64_t channels = mean.numel();
    const auto slope =
        weight.defined() ? invstd * in_statistics_type(weight) : invstd;
    const auto shift = slope * means.narrow(0, 0, channels);
    const auto pull =
        slope * invstd.square() * means.narrow(0, channels, channels);
    auto result = in_statistics_type(input) - channelwise(mean, input);
    result.mul_(channelwise(pull.neg(), input));
    result.addcmul_(in_statistics_type(grad_output), channelwise(slope, input));
    return result.sub_(channelwise(shift, input)).to(input.scalar_type());
  }

 private:
  static Tensor in_statistics_type(const Tensor& tensor) {
    return tensor.defined() ? tensor.to(statistics_type(tensor.scalar_type()))
                            : tensor;
  }

  static double count_of(const Tensor& input) {
    return static_cast<double>(input.numel() / input.size(1));
  }

  /// Moves the values to dimension 1, so that they broadcast with `input`.
  static Tensor channelwise(const Tensor& values, const Tensor& input) {
    std::vector<int64_t> shape(input.dim(), 1);
    shape[1] = -1;
    return values.view(shape);
  }

  static std::vector<int64_t> all_but_channels(const Tensor& input) {
    std::vector<int64_t> dims{0};
    for (int64_t dim = 2; dim < input.dim(); ++dim) {
      dims.push_back(dim);
    }
    return dims;
  }

  static void move_to(Tensor running, const Tensor& batch, double factor) {
    running.lerp_(batch.to(running.scalar_type()), factor);
  }
};

/// Uses LibTorch's CUDA kernels; the spread in a row is 1 / sqrt(variance +
/// eps).
class KernelMath : public BatchNormMath {
 public:
  Tensor row_of(const Tensor& input, double eps) const override {
    const auto [mean, invstd] = at::batch_norm_stats(input, eps);
    const auto count =
        at::full({1},
                 static_cast<double>(input.numel() / input.size(1)),
                 mean.options());
    return at::cat({mean, invstd, count});
  }

  /// The count is almost zero instead of zero, because the combining kernel
  /// divides by the sum of the counts so far. Otherwise the host would have to
  /// search for empty rows, which stalls it. Added to any real count, it
  /// vanishes by rounding.
  Tensor row_of_none(int64_t channels,
                     const at::TensorOptions& options,
                     bool /*is_wrong*/) const override {
    constexpr double kNextToNone = 1e-30;
    return at::cat({at::zeros({channels}, options),
                    at::ones({channels}, options),
                    at::full({1}, kNextToNone, options)});
  }

  BatchStatistics combine(const Tensor& rows,
                          const RunningStatistics& running,
                          double eps) const override {
    const int64_t channels = rows.size(1) / 2;
    const auto counts = rows.select(1, 2 * channels).contiguous();
    // The kernel uses the dtype of the running statistics, which must not be
    // half.
    const auto type = rows.scalar_type();
    const bool tracks = running.mean.defined();
    const auto running_mean = tracks ? running.mean.to(type) : Tensor();
    const auto running_var = tracks ? running.var.to(type) : Tensor();
    const auto [mean, invstd] = at::batch_norm_gather_stats_with_counts(
        /*input=*/rows,
        rows.narrow(1, 0, channels).contiguous(),
        rows.narrow(1, channels, channels).contiguous(),
        running_mean,
        running_var,
        running.factor,
        eps,
        counts);
    if (tracks && running.mean.scalar_type() != type) {
      Tensor(running.mean).copy_(running_mean);
      Tensor(running.var).copy_(running_var);
    }
    return {mean, invstd, counts.to(at::kInt)};
  }

  Tensor normalise(const Tensor& input,
                   const Tensor& weight,
                   const Tensor& bias,
                   const BatchStatistics& statistics,
                   double eps) const override {
    return at::batch_norm_elemt(
        input, weight, bias, statistics.mean, statistics.invstd, eps);
  }

  GradientSums sums_of(const Tensor& grad_output,
                       const Tensor& input,
                       const Tensor& weight,
                       const BatchStatistics& statistics) const override {
    const auto [sum_dy, sum_dy_xmu, grad_weight, grad_bias] =
        at::batch_norm_backward_reduce(grad_output,
                                       input,
                                       statistics.mean,
                                       statistics.invstd,
                                       weight,
                                       /*input_g=*/true,
                                       /*weight_g=*/weight.defined(),
                                       /*bias_g=*/weight.defined());
    return {at::cat({sum_dy, sum_dy_xmu}), grad_weight, grad_bias};
  }

  Tensor input_gradient(const Tensor& grad_output,
                        const Tensor& input,
                        const Tensor& weight,
                        const BatchStatistics& statistics,
                        const Tensor& shared) const override {
    const int64_t channels = statistics.mean.numel();
    const auto factors = weight.defined() && weight.scalar_type() !=
                                                 statistics.mean.scalar_type()
                             ? weight.to(statistics.mean.scalar_type())
                             : weight;
    return at::batch_norm_backward_elemt(grad_output,
                                         input,
                                         statistics.mean,
                                         statistics.invstd,
                                         factors,
                                         shared.narrow(0, 0, channels),
                                         shared.narrow(0, channels, channels),
                                         statistics.counts);
  }
};

}  // namespace

const BatchNormMath& batch_norm_math(c10::Device device) {
  static const OperatorMath by_operators;
  static const KernelMath by_kernels;
  if (device.is_cuda()) {
    return by_kernels;
  }
  return by_operators;
}

c10::ScalarType statistics_type(c10::ScalarType input) {
  return input == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace ddp::detail
