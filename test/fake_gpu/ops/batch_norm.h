#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

// Operators of a batch norm over several ranks. LibTorch has them for CUDA
// only; these functions compute the same results with other operators.
namespace fake_gpu {

std::tuple<at::Tensor, at::Tensor> batch_norm_stats(const at::Tensor& input,
                                                    double eps);

/// Merges one rank after the other into mean and variance. The number of values
/// so far is an integer, as in the kernel.
std::tuple<at::Tensor, at::Tensor> batch_norm_gather_stats_with_counts(
    const at::Tensor& input,
    const at::Tensor& means,
    const at::Tensor& invstds,
    const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var,
    double momentum,
    double eps,
    const at::Tensor& counts);

at::Tensor batch_norm_elemt(const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias,
                            const at::Tensor& mean,
                            const at::Tensor& invstd,
                            double eps);

/// Returns sum(dy), sum(dy * (x - mean)), and the gradients of weight and bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
batch_norm_backward_reduce(const at::Tensor& grad_output,
                           const at::Tensor& input,
                           const at::Tensor& mean,
                           const at::Tensor& invstd,
                           const std::optional<at::Tensor>& weight,
                           bool needs_input,
                           bool needs_weight,
                           bool needs_bias);

at::Tensor batch_norm_backward_elemt(const at::Tensor& grad_output,
                                     const at::Tensor& input,
                                     const at::Tensor& mean,
                                     const at::Tensor& invstd,
                                     const std::optional<at::Tensor>& weight,
                                     const at::Tensor& sum_dy,
                                     const at::Tensor& sum_dy_xmu,
                                     const at::Tensor& counts);

}  // namespace fake_gpu
