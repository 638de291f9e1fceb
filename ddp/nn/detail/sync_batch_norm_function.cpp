#include "ddp/nn/detail/sync_batch_norm_function.h"

#include <optional>
#include <tuple>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ddp/job/wait.h"

namespace ddp::detail {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kGroup = "group";

/// Statistics of a batch that is spread over several ranks.
struct BatchStatistics {
  Tensor mean;    ///< mean of each channel
  Tensor invstd;  ///< 1 / sqrt(variance + eps)
  Tensor counts;  ///< values per channel, by rank
};

/// Sums for the gradients, computed from one rank's part of the batch.
struct GradientSums {
  Tensor shared;  ///< sum of dy, then of dy * (x - mean), by channel
  Tensor weight;  ///< this rank's gradients
  Tensor bias;
};

Tensor in_statistics_type(const Tensor& tensor) {
  return tensor.defined() ? tensor.to(statistics_type(tensor.scalar_type()))
                          : tensor;
}

/// Moves the values to dimension 1, so that they broadcast with `input`.
Tensor channelwise(const Tensor& values, const Tensor& input) {
  std::vector<int64_t> shape(input.dim(), 1);
  shape[1] = -1;
  return values.view(shape);
}

std::vector<int64_t> all_but_channels(const Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) {
    dims.push_back(dim);
  }
  return dims;
}

// The arithmetic: on a GPU LibTorch's kernels, which are CUDA's alone, on the
// CPU its operators. Without grad mode.

/// Returns this rank's row of 2 * channels + 1 elements: mean of each channel,
/// spread of each channel, count. The spread is 1 / sqrt(variance + eps) on a
/// GPU and the variance on the CPU. `input` must not be empty.
Tensor row_of(const Tensor& input, double eps) {
  const auto [mean, spread] =
      input.is_cuda()
          ? at::batch_norm_stats(input, eps)
          : at::batch_norm_update_stats(in_statistics_type(input), {}, {}, 0);
  const auto count = static_cast<double>(input.numel() / input.size(1));
  return at::cat({mean, spread, at::full({1}, count, mean.options())});
}

/// Returns the row of a rank without values. The count on a GPU is almost zero
/// instead of zero, because the combining kernel divides by the sum of the
/// counts so far. Otherwise the host would have to search for empty rows, which
/// stalls it. Added to any real count, it vanishes by rounding.
Tensor row_of_none(int64_t channels, const at::TensorOptions& options) {
  const double none = options.device().is_cuda() ? 1e-30 : 0;
  return at::cat({at::zeros({channels}, options),
                  at::ones({channels}, options),
                  at::full({1}, none, options)});
}

BatchStatistics combine_on_gpu(const Tensor& rows,
                               const RunningStatistics& running,
                               double eps) {
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

/// Combines the rows of all ranks, with the same result on each rank, and
/// updates the running statistics.
/// @param rows  ranks x (2 * channels + 1), at least one of them with values.
BatchStatistics combine(const Tensor& rows,
                        const RunningStatistics& running,
                        double eps) {
  if (rows.is_cuda()) {
    return combine_on_gpu(rows, running, eps);
  }
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
    const auto type = running.mean.scalar_type();
    const auto unbiased = var * (total / (total - 1));
    Tensor(running.mean).lerp_(mean.to(type), running.factor);
    Tensor(running.var).lerp_(unbiased.to(type), running.factor);
  }
  return {mean.to(rows.scalar_type()),
          (var + eps).rsqrt().to(rows.scalar_type()),
          counts.flatten()};
}

/// Returns (input - mean) * invstd * weight + bias, in the input's dtype.
Tensor normalise(const Tensor& input,
                 const Tensor& weight,
                 const Tensor& bias,
                 const BatchStatistics& statistics,
                 double eps) {
  if (input.is_cuda()) {
    return at::batch_norm_elemt(
        input, weight, bias, statistics.mean, statistics.invstd, eps);
  }
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

/// Returns this rank's sums for the gradients of all ranks.
GradientSums sums_of(const Tensor& grad_output,
                     const Tensor& input,
                     const Tensor& weight,
                     const BatchStatistics& statistics) {
  if (input.is_cuda()) {
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
  const auto dy = in_statistics_type(grad_output);
  const auto centred =
      in_statistics_type(input) - channelwise(statistics.mean, input);
  const auto sum_dy = dy.sum(all_but_channels(input));
  const auto sum_dy_xmu = centred.mul_(dy).sum(all_but_channels(input));
  return {
      at::cat({sum_dy, sum_dy_xmu}), sum_dy_xmu * statistics.invstd, sum_dy};
}

/// Returns the gradient of the input.
/// @param shared  sum of `GradientSums::shared` over the ranks.
Tensor input_gradient(const Tensor& grad_output,
                      const Tensor& input,
                      const Tensor& weight,
                      const BatchStatistics& statistics,
                      const Tensor& shared) {
  const auto& [mean, invstd, counts] = statistics;
  const int64_t channels = mean.numel();
  const auto factors =
      weight.defined() ? weight.to(mean.scalar_type()) : weight;
  if (input.is_cuda()) {
    return at::batch_norm_backward_elemt(grad_output,
                                         input,
                                         mean,
                                         invstd,
                                         factors,
                                         shared.narrow(0, 0, channels),
                                         shared.narrow(0, channels, channels),
                                         counts);
  }
  const auto means = shared / counts.sum().to(shared.scalar_type());
  const auto slope = factors.defined() ? invstd * factors : invstd;
  const auto shift = slope * means.narrow(0, 0, channels);
  const auto pull =
      slope * invstd.square() * means.narrow(0, channels, channels);
  auto result = in_statistics_type(input) - channelwise(mean, input);
  result.mul_(channelwise(pull.neg(), input));
  result.addcmul_(in_statistics_type(grad_output), channelwise(slope, input));
  return result.sub_(channelwise(shift, input)).to(input.scalar_type());
}

/// Returns the tensor contiguous in its memory format: channels last is kept.
Tensor dense(const Tensor& tensor) {
  return tensor.contiguous(tensor.suggest_memory_format());
}

/// Returns the rows of all ranks, ordered by rank.
Tensor gather(c10d::Backend& group, Tensor row) {
  auto rows = at::empty({group.getSize() * row.numel()}, row.options());
  wait(group._allgather_base(rows, row),
       group,
       "all-gather of SyncBatchNorm's statistics");
  return rows.view({group.getSize(), -1});
}

/// Returns false if no rank has a value. Only for the CPU, where reading the
/// counts is cheap.
bool check_counts(const Tensor& counts) {
  const auto total = counts.sum().item<double>();
  TORCH_CHECK(total != 1,
              "Expected more than one value per channel over all ranks when "
              "training, but got one");
  return total > 0;
}

class SyncBatchNormFunction
    : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  static Tensor forward(AutogradContext* context,
                        const Tensor& given,
                        const std::optional<Tensor>& weight,
                        const std::optional<Tensor>& bias,
                        const SyncBatchNormCall& call) {
    const auto input = dense(given);
    const bool has_values = input.numel() > 0;
    const auto row = has_values ? row_of(input, call.eps).to(call.type)
                                : row_of_none(call.channels,
                                              input.options().dtype(call.type));
    const auto rows = gather(*call.group, row);
    BatchStatistics statistics;
    if (!input.is_cpu() || check_counts(rows.select(1, 2 * call.channels))) {
      statistics = combine(rows, call.running, call.eps);
    }
    context->save_for_backward({input,
                                weight.value_or(Tensor()),
                                statistics.mean,
                                statistics.invstd,
                                statistics.counts});
    context->saved_data[kGroup] = c10::IValue::make_capsule(call.group);
    return has_values ? normalise(input,
                                  weight.value_or(Tensor()),
                                  bias.value_or(Tensor()),
                                  statistics,
                                  call.eps)
                      : at::empty_like(input);
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& grads) {
    TORCH_CHECK(!c10::GradMode::is_enabled(),
                "Expected a backward pass through SyncBatchNorm without "
                "create_graph: its gradients have none across ranks");
    const auto saved = context->get_saved_variables();
    const Tensor& input = saved[0];
    const Tensor& weight = saved[1];
    const BatchStatistics statistics{saved[2], saved[3], saved[4]};
    if (!statistics.mean.defined()) {  // no rank had a value
      return {at::zeros_like(input), zeros(weight), zeros(weight), Tensor()};
    }
    const auto grad_output = dense(grads[0]);
    GradientSums sums{
        at::zeros({2 * statistics.mean.numel()}, statistics.mean.options()),
        zeros(weight),
        zeros(weight)};
    if (input.numel() > 0) {
      sums = sums_of(grad_output, input, weight, statistics);
    }
    Tensor grad_input;
    if (context->needs_input_grad(0)) {
      const auto group = c10::static_intrusive_pointer_cast<c10d::Backend>(
          context->saved_data[kGroup].toCapsule());
      std::vector<Tensor> shared{sums.shared};
      wait(group->allreduce(shared),
           *group,
           "all-reduce of SyncBatchNorm's gradients");
      grad_input = input.numel() > 0
                       ? input_gradient(
                             grad_output, input, weight, statistics, shared[0])
                       : at::zeros_like(input);
    }
    return {grad_input,
            like(sums.weight, weight),
            like(sums.bias, weight),
            Tensor()};
  }

 private:
  static Tensor zeros(const Tensor& weight) {
    return weight.defined() ? at::zeros_like(weight) : Tensor();
  }

  static Tensor like(const Tensor& gradient, const Tensor& weight) {
    return weight.defined() ? gradient.to(weight.scalar_type()) : Tensor();
  }
};

std::optional<Tensor> if_defined(const Tensor& tensor) {
  return tensor.defined() ? std::make_optional(tensor) : std::nullopt;
}

}  // namespace

c10::ScalarType statistics_type(c10::ScalarType input) {
  return input == at::kDouble ? at::kDouble : at::kFloat;
}

Tensor sync_batch_norm(const Tensor& input, const SyncBatchNormCall& call) {
  return SyncBatchNormFunction::apply(
      input, if_defined(call.weight), if_defined(call.bias), call);
}

}  // namespace ddp::detail
