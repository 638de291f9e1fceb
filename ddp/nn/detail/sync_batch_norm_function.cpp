#include "ddp/nn/detail/sync_batch_norm_function.h"

#include <optional>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ddp/base/text/rank_text.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"

namespace ddp::detail {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kGroup = "group";

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

/// Collective: all ranks have seen the invalid count, so all call this
/// function.
[[noreturn]] void throw_problems(const SyncBatchNormCall& call) {
  const auto problems = all_gather_text(*call.group, c10::kCPU, call.problem);
  TORCH_CHECK(false,
              "Expected inputs of one SyncBatchNorm to fit together, but got",
              names_by_rank(problems),
              " give every rank an input of ",
              call.channels,
              " channels in dimension 1, of one floating-point type");
}

/// Checks the counts of all ranks. Only for the CPU, where reading them is
/// cheap. Returns false if no rank has a value.
bool check_counts(const Tensor& counts, const SyncBatchNormCall& call) {
  if (counts.eq(BatchNormMath::kWrong).any().item<bool>()) {
    throw_problems(call);
  }
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
    const auto& math = batch_norm_math(input.device());
    const bool has_values = call.problem.empty() && input.numel() > 0;
    const auto row = has_values
                         ? math.row_of(input, call.eps).to(call.type)
                         : math.row_of_none(call.channels,
                                            input.options().dtype(call.type),
                                            !call.problem.empty());
    const auto rows = gather(*call.group, row);
    BatchStatistics statistics;
    if (!input.is_cpu() ||
        check_counts(rows.select(1, 2 * call.channels), call)) {
      statistics = math.combine(rows, call.running, call.eps);
    }
    TORCH_CHECK(
        call.problem.empty(),
        "Expected inputs of one SyncBatchNorm to fit together, but got ",
        call.problem);
    context->save_for_backward({input,
                                weight.value_or(Tensor()),
                                statistics.mean,
                                statistics.invstd,
                                statistics.counts});
    context->saved_data[kGroup] = c10::IValue::make_capsule(call.group);
    return has_values ? math.normalise(input,
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
    const auto& math = batch_norm_math(input.device());
    const auto grad_output = dense(grads[0]);
    GradientSums sums{
        at::zeros({2 * statistics.mean.numel()}, statistics.mean.options()),
        zeros(weight),
        zeros(weight)};
    if (input.numel() > 0) {
      sums = math.sums_of(grad_output, input, weight, statistics);
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
                       ? math.input_gradient(
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

Tensor sync_batch_norm(const Tensor& input, const SyncBatchNormCall& call) {
  return SyncBatchNormFunction::apply(
      input, if_defined(call.weight), if_defined(call.bias), call);
}

}  // namespace ddp::detail
