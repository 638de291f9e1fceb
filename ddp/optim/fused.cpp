#include "ddp/optim/fused.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
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

/// Runs an SGD kernel.
/// @param lr  a number, or a tensor on the batch's device.
template <class Rate>
void call_kernel(const Batch& batch,
                 const SGDOptions& options,
                 const Rate& lr,
                 const at::Tensor& /*step*/) {
  at::_fused_sgd_(
      batch.params,
      batch.grads,
      batch.states[0],
      options.weight_decay(),
      options.momentum(),
      lr,
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
template <class Options, class Rate>
void call_kernel(const Batch& batch,
                 const Options& options,
                 const Rate& lr,
                 const at::Tensor& step) {
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
         lr,
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

/// Makes the step of a batch with numbers of the host.
struct HostNumbers {
  template <class Options>
  void operator()(size_t /*group*/,
                  const Batch& batch,
                  const Options& options) const {
    at::Tensor step;
    if constexpr (!kIsSGD<Options>) {
      step =
          at::full({}, batch.step, at::device(batch.device).dtype(at::kFloat));
    }
    call_kernel(batch, options, options.lr(), step);
  }
};

/// Steps the parameters that the kernels support, and returns the others. One
/// kernel would make all steps of a repeated parameter, or of several in one
/// memory, at the same time.
/// @param step_batch  called with the group's number, a batch and the options.
template <class Options, class StepBatch>
GroupParameters step_fused(Optimizer& optimizer, const StepBatch& step_batch) {
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
      step_batch(g, batch, options);
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
  auto rest = step_fused<Options>(optimizer, HostNumbers());
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

namespace detail {

namespace {

/// Numbers on the device that the kernels of a graph read.
struct DeviceNumber {
  at::Tensor tensor;
  double value = 0;  ///< of the tensor, after all work that is queued

  void set(double wanted) {
    if (value != wanted && tensor.defined()) {
      tensor.fill_(wanted);
      value = wanted;
    }
  }
};

template <class Options>
class RecordedStepOf : public RecordedFusedStep {
  using State = std::conditional_t<
      kIsSGD<Options>,
      SGDParamState,
      std::conditional_t<kIsAdamW<Options>, AdamWParamState, AdamParamState>>;

 public:
  explicit RecordedStepOf(Optimizer& optimizer) : optimizer_(optimizer) {
    const c10::NoGradGuard no_grad;
    const auto& groups = optimizer.param_groups();
    rates_.resize(groups.size());
    for (size_t g = 0; g < groups.size(); ++g) {
      options_.push_back(static_cast<const Options&>(groups[g].options()));
      for (const auto& param : groups[g].params()) {
        if (!rates_[g].tensor.defined()) {
          rates_[g] = number(param, options_[g].lr());
        }
        members_.push_back({g, param, memory_of(param), state_memory(param)});
        members_.back().step = step_of(param);
        counters_.try_emplace(members_.back().step,
                              number(param, double(members_.back().step)));
      }
    }
  }

  void record() override {
    for (auto& member : members_) {
      member.steps = member.param.grad().defined();
      TORCH_CHECK(!member.steps || !needs_state(member) ||
                      find_state<State>(optimizer_, member.param) != nullptr,
                  "Expected the same parameters to get a gradient in each "
                  "step, but one of ",
                  member.param.sizes(),
                  " got its first one while the step was recorded; let it take "
                  "part in the warm-up");
    }
    const auto guard = c10::make_scope_exit([this] { restore_steps(); });
    const c10::NoGradGuard no_grad;
    std::set<int64_t> counted;
    const auto rest = step_fused<Options>(
        optimizer_,
        [&](size_t group, const Batch& batch, const Options& options) {
          const int64_t before = batch.step - 1;
          const auto& counter = counters_.at(kIsSGD<Options> ? 0 : before);
          if (!kIsSGD<Options> && counted.insert(before).second) {
            counter.tensor.add_(1);
          }
          call_kernel(batch, options, rates_[group].tensor, counter.tensor);
        });
    for (const auto& group : rest) {
      TORCH_CHECK(group.empty(),
                  "Expected parameters that the fused kernels support, but got "
                  "one of ",
                  group.front().scalar_type(),
                  group.front().sizes(),
                  " that they do not; see ddp::FusedSGD");
    }
  }

  bool is_current() const override {
    const auto& groups = optimizer_.param_groups();
    size_t count = 0;
    for (const auto& group : groups) {
      count += group.params().size();
    }
    check(groups.size() == options_.size() && count == members_.size(),
          "another number of parameters");
    std::map<int64_t, int64_t> steps;  // now, by the numbers of `record`
    for (const auto& member : members_) {
      check(memory_of(member.param) == member.memory, "a parameter");
      check(!member.steps || state_memory(member.param) == member.states,
            "the state of a parameter");
      const int64_t now = step_of(member.param);
      if (member.steps &&
          steps.try_emplace(member.step, now).first->second != now) {
        return false;
      }
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      auto now = static_cast<const Options&>(groups[g].options());
      now.lr(options_[g].lr());
      if (!(now == options_[g])) {
        return false;
      }
    }
    return true;
  }

  void before_replay() override {
    const c10::NoGradGuard no_grad;
    for (size_t g = 0; g < rates_.size(); ++g) {
      rates_[g].set(optimizer_.param_groups()[g].options().get_lr());
    }
    if constexpr (!kIsSGD<Options>) {
      for (const auto& member : members_) {
        if (member.steps) {
          counters_.at(member.step).set(double(step_of(member.param)));
        }
      }
    }
  }

  void after_replay() override {
    for (const auto& member : members_) {
      if (!member.steps) {
        continue;
      }
      member.param.unsafeGetTensorImpl()->bump_version();
      if constexpr (!kIsSGD<Options>) {
        auto* state = find_state<State>(optimizer_, member.param);
        state->step(state->step() + 1);
        counters_.at(member.step).value = double(state->step());
      }
    }
  }

 private:
  /// A parameter, as it was when the step was recorded.
  struct Member {
    size_t group;
    at::Tensor param;
    const void* memory;
    std::array<const void*, 3> states;
    int64_t step = 0;    ///< made before, by its state
    bool steps = false;  ///< the recorded step updates it
  };

  static DeviceNumber number(const at::Tensor& param, double value) {
    return {at::full({}, value, at::device(param.device()).dtype(at::kFloat)),
            value};
  }

  static const void* memory_of(const at::Tensor& tensor) {
    return tensor.defined() && tensor.layout() == c10::kStrided
               ? tensor.const_data_ptr()
               : nullptr;
  }

  static void check(bool is_same, const char* what) {
    TORCH_CHECK(is_same,
                "Expected the optimizer of the recorded step, but got ",
                what,
                " with other memory (a load, set_data, add_param_group); call "
                "reset() of the GraphedStep after such a change");
  }

  bool needs_state(const Member& member) const {
    if constexpr (kIsSGD<Options>) {
      return options_[member.group].momentum() != 0;
    } else {
      return true;
    }
  }

  std::array<const void*, 3> state_memory(const at::Tensor& param) const {
    const auto* state = find_state<State>(optimizer_, param);
    if (state == nullptr) {
      return {};
    }
    if constexpr (kIsSGD<Options>) {
      return {memory_of(state->momentum_buffer())};
    } else {
      return {memory_of(state->exp_avg()),
              memory_of(state->exp_avg_sq()),
              memory_of(state->max_exp_avg_sq())};
    }
  }

  int64_t step_of(const at::Tensor& param) const {
    if constexpr (kIsSGD<Options>) {
      return 0;
    } else {
      const auto* state = find_state<State>(optimizer_, param);
      return state == nullptr ? 0 : state->step();
    }
  }

  void restore_steps() {
    if constexpr (!kIsSGD<Options>) {
      for (const auto& member : members_) {
        if (auto* state = find_state<State>(optimizer_, member.param)) {
          state->step(member.step);
        }
      }
    }
  }

  Optimizer& optimizer_;
  std::vector<Options> options_;              // of each group
  std::vector<DeviceNumber> rates_;           // of each group
  std::map<int64_t, DeviceNumber> counters_;  // by the steps made before
  std::vector<Member> members_;
};

}  // namespace

std::unique_ptr<RecordedFusedStep> make_recorded_step(Optimizer& optimizer) {
  if (dynamic_cast<FusedSGD*>(&optimizer) != nullptr) {
    return std::make_unique<RecordedStepOf<SGDOptions>>(optimizer);
  }
  if (dynamic_cast<FusedAdam*>(&optimizer) != nullptr) {
    return std::make_unique<RecordedStepOf<AdamOptions>>(optimizer);
  }
  TORCH_CHECK(dynamic_cast<FusedAdamW*>(&optimizer) != nullptr,
              "Expected a ddp::FusedSGD, FusedAdam or FusedAdamW, but got "
              "another optimizer");
  return std::make_unique<RecordedStepOf<AdamWOptions>>(optimizer);
}

}  // namespace detail

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
