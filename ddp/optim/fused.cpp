#include "ddp/optim/fused.h"

#include <algorithm>
#include <array>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>

#include "ddp/tensors/overlap.h"
#include "ddp/tensors/same_layout.h"

namespace ddp {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamParamState;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::Optimizer;
using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

constexpr int64_t kFirstStep = 1;  // number of a first step

template <class Options>
constexpr bool kIsAdamW = std::is_same_v<Options, AdamWOptions>;
template <class Options>
constexpr bool kIsSGD = std::is_same_v<Options, SGDOptions>;

/// Views complex numbers as pairs of real ones, as Python's optimizers do.
at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

/// Parameters that one call of a fused kernel steps, with their gradients and
/// states.
struct Batch {
  c10::Device device;
  c10::ScalarType dtype;
  int64_t step;  ///< number of this step for all of them
  std::vector<at::Tensor> params;
  std::vector<at::Tensor> grads;
  std::array<std::vector<at::Tensor>, 3> states;

  void add(const at::Tensor& param) {
    params.push_back(as_real(param));
    grads.push_back(as_real(param.grad()));
    param.unsafeGetTensorImpl()->bump_version();  // kernels do not
  }
};

/// Returns the batch for `param`; in a step most parameters share one batch.
Batch& batch_of(std::vector<Batch>& batches,
                const at::Tensor& param,
                int64_t step) {
  const auto dtype = c10::toRealValueType(param.scalar_type());
  const auto found =
      std::find_if(batches.begin(), batches.end(), [&](const auto& batch) {
        return batch.step == step && batch.dtype == dtype &&
               batch.device == param.device();
      });
  if (found != batches.end()) {
    return *found;
  }
  batches.push_back({param.device(), dtype, step, {}, {}, {}});
  return batches.back();
}

/// Returns true if a fused kernel supports the parameter's dtype and device. On
/// the CPU half types use LibTorch's operators: the fused SGD kernel leaves
/// half parameters unchanged.
bool has_kernel(const at::Tensor& param) {
  const auto dtype = c10::toRealValueType(param.scalar_type());
  const bool is_wide = dtype == c10::kFloat || dtype == c10::kDouble;
  const bool is_half = dtype == c10::kHalf || dtype == c10::kBFloat16;
  return (param.is_cpu() && is_wide) ||
         (param.is_cuda() && (is_wide || is_half));
}

/// Returns true if `other` (a gradient, a state) has the parameter's device and
/// dtype, and the same memory order of elements.
bool is_like(const at::Tensor& other, const at::Tensor& param) {
  return other.defined() && other.layout() == c10::kStrided &&
         other.scalar_type() == param.scalar_type() &&
         other.device() == param.device() &&
         detail::has_same_layout(other, param);
}

/// Returns true if the fused kernels support this parameter with this gradient.
/// The kernels walk through the memory of both and ignore the strides.
bool is_fusible(const at::Tensor& param, const at::Tensor& grad) {
  return has_kernel(param) && param.layout() == c10::kStrided &&
         param.is_non_overlapping_and_dense() && is_like(grad, param);
}

/// Returns the parameter's state, or null if there is none yet.
template <class State>
State* find_state(Optimizer& optimizer, const at::Tensor& param) {
  const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
  return found == optimizer.state().end()
             ? nullptr
             : static_cast<State*>(found->second.get());
}

/// Adds a parameter to its batch and, for Adam, increments the step in its
/// state. Returns false if the kernel does not support the layout of its state.
bool add_to_batch(Optimizer& optimizer,
                  std::vector<Batch>& batches,
                  const SGDOptions& options,
                  const at::Tensor& param) {
  if (options.momentum() == 0) {
    batch_of(batches, param, kFirstStep).add(param);
    return true;
  }
  auto* state = find_state<SGDParamState>(optimizer, param);
  if (state != nullptr && !is_like(state->momentum_buffer(), param)) {
    return false;
  }
  auto& batch =
      batch_of(batches, param, state == nullptr ? kFirstStep : kFirstStep + 1);
  if (state == nullptr) {
    auto made = std::make_unique<SGDParamState>();
    made->momentum_buffer(at::empty_like(param));  // filled by the first step
    state = made.get();
    optimizer.state()[param.unsafeGetTensorImpl()] = std::move(made);
  }
  batch.add(param);
  batch.states[0].push_back(as_real(state->momentum_buffer()));
  return true;
}

void call_kernel(const Batch& batch, const SGDOptions& options) {
  at::_fused_sgd_(
      batch.params,
      batch.grads,
      batch.states[0],
      options.weight_decay(),
      options.momentum(),
      options.lr(),
      options.dampening(),
      options.nesterov(),
      /*maximize=*/false,
      /*is_first_step=*/options.momentum() != 0 && batch.step == kFirstStep);
}

/// Adds a parameter of Adam or AdamW.
template <class Options>
bool add_to_batch(Optimizer& optimizer,
                  std::vector<Batch>& batches,
                  const Options& options,
                  const at::Tensor& param) {
  using State =
      std::conditional_t<kIsAdamW<Options>, AdamWParamState, AdamParamState>;
  auto* state = find_state<State>(optimizer, param);
  if (state == nullptr) {
    auto made = std::make_unique<State>();
    made->exp_avg(at::zeros_like(param));
    made->exp_avg_sq(at::zeros_like(param));
    if (options.amsgrad()) {
      made->max_exp_avg_sq(at::zeros_like(param));
    }
    state = made.get();
    optimizer.state()[param.unsafeGetTensorImpl()] = std::move(made);
  }
  if (!is_like(state->exp_avg(), param) ||
      !is_like(state->exp_avg_sq(), param) ||
      (options.amsgrad() && !is_like(state->max_exp_avg_sq(), param))) {
    return false;
  }
  state->step(state->step() + 1);
  auto& batch = batch_of(batches, param, state->step());
  batch.add(param);
  batch.states[0].push_back(as_real(state->exp_avg()));
  batch.states[1].push_back(as_real(state->exp_avg_sq()));
  if (options.amsgrad()) {
    batch.states[2].push_back(as_real(state->max_exp_avg_sq()));
  }
  return true;
}

/// Runs an Adam kernel. The kernels need a step tensor for each parameter; all
/// parameters of a batch have the same step.
template <class Options>
void call_kernel(const Batch& batch, const Options& options) {
  const auto step =
      at::full({}, batch.step, at::device(batch.device).dtype(at::kFloat));
  const std::vector<at::Tensor> steps(batch.params.size(), step);
  const auto kernel = [](const auto&... inputs) {
    if constexpr (kIsAdamW<Options>) {
      at::_fused_adamw_(inputs...);
    } else {
      at::_fused_adam_(inputs...);
    }
  };
  kernel(batch.params,
         batch.grads,
         batch.states[0],
         batch.states[1],
         batch.states[2],
         steps,
         options.lr(),
         std::get<0>(options.betas()),
         std::get<1>(options.betas()),
         options.weight_decay(),
         options.eps(),
         options.amsgrad(),
         /*maximize=*/false);
}

/// The parameters of each group of an optimizer.
using GroupParameters = std::vector<std::vector<at::Tensor>>;

/// Calls `work` while the optimizer's groups hold only these parameters, so
/// that its step updates no others. LibTorch's optimizers find the state by the
/// parameter and the options by the group.
template <class Work>
void with_parameters(Optimizer& optimizer,
                     GroupParameters& parameters,
                     const Work& work) {
  const auto swap = [&] {
    for (size_t g = 0; g < parameters.size(); ++g) {
      optimizer.param_groups()[g].params().swap(parameters[g]);
    }
  };
  swap();
  const auto guard = c10::make_scope_exit(swap);
  work();
}

/// Steps the parameters that the kernels support, and returns the others. One
/// kernel would make all steps of a repeated parameter, or of several in one
/// memory, at the same time.
template <class Options>
GroupParameters step_fused(Optimizer& optimizer) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  auto& groups = optimizer.param_groups();
  GroupParameters rest(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& options = static_cast<const Options&>(groups[g].options());
    const auto& params = groups[g].params();
    if (detail::find_overlap(params).defined()) {
      rest[g] = params;
      continue;
    }
    std::vector<Batch> batches;
    for (const auto& param : params) {
      const at::Tensor& grad = param.grad();
      if (!grad.defined()) {
        continue;
      }
      if (!is_fusible(param, grad) ||
          !add_to_batch(optimizer, batches, options, param)) {
        rest[g].push_back(param);
      }
    }
    for (const auto& batch : batches) {
      const c10::OptionalDeviceGuard device(batch.device);
      call_kernel(batch, options);
    }
  }
  return rest;
}

/// Makes a step: fused kernels first, then `step_rest`, which steps the
/// remaining parameters with LibTorch's optimizer.
template <class Options, class StepRest>
at::Tensor fused_step(Optimizer& optimizer,
                      const Optimizer::LossClosure& closure,
                      const StepRest& step_rest) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  const c10::NoGradGuard no_grad;
  auto rest = step_fused<Options>(optimizer);
  for (const auto& group : rest) {
    for (const auto& param : group) {
      TORCH_CHECK(
          kIsSGD<Options> || !param.is_complex(),
          "Expected a dense complex parameter, once in its group, with a "
          "gradient of its dtype and memory layout, because LibTorch's own "
          "Adam differs from Python's for complex numbers, but got one of ",
          param.scalar_type(),
          param.sizes(),
          "; make it contiguous, or keep its real and imaginary parts");
    }
  }
  if (std::any_of(rest.begin(), rest.end(), [](const auto& group) {
        return !group.empty();
      })) {
    with_parameters(optimizer, rest, step_rest);
  }
  return loss;
}

}  // namespace

torch::Tensor FusedSGD::step(LossClosure closure) {
  return fused_step<SGDOptions>(*this, closure, [this] { SGD::step(); });
}

torch::Tensor FusedAdam::step(LossClosure closure) {
  return fused_step<AdamOptions>(*this, closure, [this] { Adam::step(); });
}

torch::Tensor FusedAdamW::step(LossClosure closure) {
  return fused_step<AdamWOptions>(*this, closure, [this] { AdamW::step(); });
}

}  // namespace ddp
