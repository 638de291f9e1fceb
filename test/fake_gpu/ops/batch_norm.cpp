#include "test/fake_gpu/ops/batch_norm.h"

#include <ATen/ATen.h>

#include <vector>

namespace fake_gpu {

using at::Tensor;

namespace {

std::vector<int64_t> all_but_channels(const Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) {
    dims.push_back(dim);
  }
  return dims;
}

Tensor in_channels_of(const Tensor& input, const Tensor& values) {
  std::vector<int64_t> shape(input.dim(), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

bool is_given(const std::optional<Tensor>& tensor) {
  return tensor.has_value() && tensor->defined();
}

}  // namespace

std::tuple<Tensor, Tensor> batch_norm_stats(const Tensor& input, double eps) {
  const auto dims = all_but_channels(input);
  const Tensor mean = input.mean(dims);
  const Tensor centred = input - in_channels_of(input, mean);
  const Tensor var = (centred * centred).mean(dims);
  return {mean, (var + eps).pow(-0.5)};
}

std::tuple<Tensor, Tensor> batch_norm_gather_stats_with_counts(
    const Tensor& /*input*/,
    const Tensor& means,
    const Tensor& invstds,
    const std::optional<Tensor>& running_mean,
    const std::optional<Tensor>& running_var,
    double momentum,
    double eps,
    const Tensor& counts) {
  Tensor mean = at::zeros_like(means.select(0, 0));
  Tensor squares = at::zeros_like(mean);
  Tensor total = at::zeros({1}, counts.options());
  const Tensor one = at::ones({1}, counts.options());
  for (int64_t rank = 0; rank < means.size(0); ++rank) {
    const Tensor count = counts.narrow(0, rank, 1);
    const Tensor theirs = means.select(0, rank);
    const Tensor var = invstds.select(0, rank).pow(-2) - eps;
    const Tensor factor = (total + count).reciprocal();
    const Tensor apart = mean - theirs;
    squares = squares + var * count + apart * apart * (total * count * factor);
    mean = mean * (total * factor) + theirs * (count * factor);
    total = at::div(total + count, one, "floor");
  }
  if (is_given(running_mean)) {
    Tensor(*running_mean).lerp_(mean, momentum);
    Tensor(*running_var).lerp_(squares / (total - one), momentum);
  }
  return {mean, (squares / total + eps).pow(-0.5)};
}

Tensor batch_norm_elemt(const Tensor& input,
                        const std::optional<Tensor>& weight,
                        const std::optional<Tensor>& bias,
                        const Tensor& mean,
                        const Tensor& invstd,
                        double /*eps*/) {
  Tensor result =
      (input - in_channels_of(input, mean)) * in_channels_of(input, invstd);
  if (is_given(weight)) {
    result =
        result * in_channels_of(input, *weight) + in_channels_of(input, *bias);
  }
  return result;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_backward_reduce(
    const Tensor& grad_output,
    const Tensor& input,
    const Tensor& mean,
    const Tensor& invstd,
    const std::optional<Tensor>& /*weight*/,
    bool /*needs_input*/,
    bool needs_weight,
    bool needs_bias) {
  const auto dims = all_but_channels(input);
  const Tensor centred = input - in_channels_of(input, mean);
  const Tensor sum_dy = grad_output.sum(dims);
  const Tensor sum_dy_xmu = (grad_output * centred).sum(dims);
  return {sum_dy,
          sum_dy_xmu,
          needs_weight ? sum_dy_xmu * invstd : Tensor(),
          needs_bias ? sum_dy * 1 : Tensor()};
}

Tensor batch_norm_backward_elemt(const Tensor& grad_output,
                                 const Tensor& input,
                                 const Tensor& mean,
                                 const Tensor& invstd,
                                 const std::optional<Tensor>& weight,
                                 const Tensor& sum_dy,
                                 const Tensor& sum_dy_xmu,
                                 const Tensor& counts) {
  const auto in_channels = [&](const Tensor& values) {
    return in_channels_of(input, values);
  };
  const Tensor total = counts.to(mean.scalar_type()).sum();
  const Tensor slope = is_given(weight) ? invstd * *weight : invstd;
  const Tensor centred = input - in_channels(mean);
  const Tensor pull = sum_dy_xmu / total * invstd * invstd;
  return (grad_output - in_channels(sum_dy / total) -
          centred * in_channels(pull)) *
         in_channels(slope);
}

}  // namespace fake_gpu
