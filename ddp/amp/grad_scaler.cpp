#include "ddp/amp/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/job/join.h"
#include "ddp/job/state_sync.h"
#include "ddp/job/wait.h"
#include "ddp/tensors/shard_storage.h"

namespace ddp {
namespace {

// Entries of Python's state.
constexpr const char* kScale = "scale";
constexpr const char* kGrowthFactor = "growth_factor";
constexpr const char* kBackoffFactor = "backoff_factor";
constexpr const char* kGrowthInterval = "growth_interval";
constexpr const char* kGrowthTracker = "_growth_tracker";

constexpr const char* kFoundInf = "all-reduce of what a GradScaler has found";

double checked_scale(double scale) {
  TORCH_CHECK(scale > 0 && std::isfinite(scale),
              "Expected a scale that is positive and finite, but got ",
              scale);
  return scale;
}

double checked_growth(double factor) {
  TORCH_CHECK(factor > 1 && std::isfinite(factor),
              "Expected a growth_factor above 1, but got ",
              factor);
  return factor;
}

double checked_backoff(double factor) {
  TORCH_CHECK(factor > 0 && factor < 1,
              "Expected a backoff_factor between 0 and 1, but got ",
              factor);
  return factor;
}

int64_t checked_interval(int64_t interval) {
  TORCH_CHECK(interval >= 1,
              "Expected a growth_interval of at least 1, but got ",
              interval);
  return interval;
}

/// Returns the dense gradients, and the values of the sparse ones.
std::vector<at::Tensor> gradients_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  // LibTorch's Module::parameters() lists a tied parameter several times.
  std::unordered_set<const c10::TensorImpl*> seen;
  size_t group = 0;
  for (const auto& each : optimizer.param_groups()) {
    for (size_t i = 0; i < each.params().size(); ++i) {
      const at::Tensor& grad = each.params()[i].grad();
      if (!grad.defined() || !seen.insert(grad.unsafeGetTensorImpl()).second) {
        continue;
      }
      TORCH_CHECK(grad.scalar_type() != c10::kHalf,
                  "Expected gradients of float to unscale, but parameter ",
                  i,
                  " of the optimizer's group ",
                  group,
                  " has one of float16; keep parameters in float and let an "
                  "AutocastGuard choose where to compute in float16");
      gradients.push_back(grad.is_sparse() ? grad._values() : grad);
    }
    ++group;
  }
  return gradients;
}

/// Copies to another device. A copy to the host blocks: otherwise the host
/// would read it too early.
at::Tensor moved(const at::Tensor& tensor, c10::Device device) {
  return tensor.to(device, tensor.scalar_type(), !device.is_cpu());
}

/// Multiplies the gradients of an optimizer's parameters by `factor`, in place:
/// for a sparse gradient its values, and for a tied parameter, which the
/// optimizer may list several times, only once. Waits for a device only if the
/// factor or a result must be copied to the host. A gradient of float16 throws
/// before any change; for another dtype that LibTorch cannot unscale (complex,
/// bfloat16 on a GPU), gradients of other dtypes may have been changed.
/// @param factor  one float, on any device.
/// @returns one float on that device, above 0 if a gradient contained inf or
///   NaN; undefined if no parameter has a gradient.
at::Tensor unscale_gradients(const torch::optim::Optimizer& optimizer,
                             const at::Tensor& factor) {
  const c10::NoGradGuard no_grad;
  at::Tensor found_inf;
  for (const auto& gradients :
       detail::by_dtype_and_device(gradients_of(optimizer))) {
    const auto device = gradients.front().device();
    auto found_here = at::zeros({}, factor.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(
        gradients, found_here, moved(factor, device));
    found_here = moved(found_here, factor.device());
    found_inf = found_inf.defined() ? found_inf.add_(found_here) : found_here;
  }
  return found_inf;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : enabled_(options.enabled()),
      growth_factor_(checked_growth(options.growth_factor())),
      backoff_factor_(checked_backoff(options.backoff_factor())),
      growth_interval_(checked_interval(options.growth_interval())),
      group_(options.process_group()),
      first_scale_(checked_scale(options.init_scale())) {}

void GradScaler::check_scaled(const char* call) const {
  TORCH_CHECK(scale_.defined(),
              "Expected scale() before the first ",
              call,
              ", but nothing has been scaled; call "
              "scaler.scale(loss).backward()");
}

/// Creates the scale on the device of the first loss.
void GradScaler::prepare(c10::Device device) {
  if (scale_.defined()) {
    return;
  }
  const at::TensorOptions options(device);
  scale_ = at::full({}, first_scale_, options.dtype(c10::kFloat));
  growth_tracker_ = at::full({}, first_tracker_, options.dtype(c10::kInt));
}

at::Tensor GradScaler::scale(const at::Tensor& output) {
  if (!enabled_) {
    return output;
  }
  TORCH_CHECK(!Join::is_running(),
              "Expected no enabled GradScaler in a Join, because ranks without "
              "inputs would not change its scale, but got one; compute in "
              "bfloat16, which needs none, or give all ranks the same number "
              "of inputs");
  TORCH_CHECK(output.defined(),
              "Expected a tensor to scale, but got an undefined one");
  prepare(output.device());
  const bool to_host = output.is_cpu();
  return output * scale_.to(output.device(), c10::kFloat, !to_host);
}

std::vector<at::Tensor> GradScaler::scale(
    const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> scaled;
  scaled.reserve(outputs.size());
  for (const auto& output : outputs) {
    scaled.push_back(scale(output));
  }
  return scaled;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!enabled_) {
    return;
  }
  check_scaled("unscale_()");
  auto& progress = progress_[&optimizer];
  TORCH_CHECK(progress.stage != Stage::unscaled,
              "Expected unscale_() once between two calls of update(), but the "
              "gradients of this optimizer are unscaled already");
  TORCH_CHECK(progress.stage != Stage::stepped,
              "Expected unscale_() before step(), but this optimizer has "
              "stepped since the last update(); call update() after the step");
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!group_) {
        detail::refuse_shard(parameter, "a GradScaler without a process_group");
      }
    }
  }
  const c10::NoGradGuard no_grad;
  // In double: a float reciprocal may differ from the nearest float.
  const auto factor = scale_.to(c10::kDouble).reciprocal().to(c10::kFloat);
  progress.found_inf = unscale_gradients(optimizer, factor);
  progress.stage = Stage::unscaled;
  if (group_) {
    progress.most = most_of_ranks(progress.found_inf);
    progress.found_inf = progress.most[0];
  }
}

at::Tensor GradScaler::most_of_ranks(const at::Tensor& found_inf) const {
  const auto tracker = growth_tracker_.to(c10::kFloat);
  std::vector<at::Tensor> shared{
      at::stack({found_inf.defined() ? found_inf : at::zeros_like(scale_),
                 scale_,
                 -scale_,
                 tracker,
                 -tracker})};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  detail::wait(group_->allreduce(shared, options), *group_, kFoundInf);
  return shared[0];
}

/// The ranks' gradients were computed with these scales: a step would part the
/// ranks, or mix gradients of several scales.
void GradScaler::check_equal(const at::Tensor& most) const {
  const auto* of = most.const_data_ptr<float>();
  TORCH_CHECK(
      of[1] == -of[2] && of[3] == -of[4],
      "Expected one scale and one growth tracker on all ranks of the "
      "GradScaler's process_group, but got scales from ",
      -of[2],
      " to ",
      of[1],
      " and growth trackers from ",
      -of[4],
      " to ",
      of[3],
      " (rank ",
      group_->getRank(),
      ": ",
      get_scale(),
      " and ",
      growth_tracker_.item<int>(),
      "); give all ranks equal GradScalerOptions and calls of update(), "
      "and load one state on all");
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!enabled_) {
    optimizer.step();
    return true;
  }
  check_scaled("step()");
  auto& progress = progress_[&optimizer];
  TORCH_CHECK(progress.stage != Stage::stepped,
              "Expected step() once between two calls of update(), but this "
              "optimizer has stepped already; call update() after the step");
  if (progress.stage == Stage::ready) {
    unscale_(optimizer);
  }
  TORCH_CHECK(progress.found_inf.defined(),
              "Expected gradients to step with, but none of the optimizer's "
              "parameters has one; call scaler.scale(loss).backward()");
  auto found_inf = progress.found_inf;
  if (group_) {
    const auto most =
        detail::copy_result(progress.most, c10::kCPU, *group_, kFoundInf);
    check_equal(most);
    found_inf = most[0];
  }
  const bool is_sound = found_inf.item<float>() == 0;
  if (is_sound) {
    optimizer.step();
  } else {
    detail::note_step(optimizer);
  }
  progress.stage = Stage::stepped;
  return is_sound;
}

void GradScaler::update() {
  if (!enabled_) {
    return;
  }
  check_scaled("update()");
  const c10::NoGradGuard no_grad;
  at::Tensor found_inf;
  for (const auto& [optimizer, progress] : progress_) {
    if (progress.found_inf.defined()) {
      found_inf = found_inf.defined() ? found_inf + progress.found_inf
                                      : progress.found_inf;
    }
  }
  TORCH_CHECK(found_inf.defined(),
              "Expected step() or unscale_() before update(), but no gradient "
              "has been looked at since the last one; call step() for each "
              "optimizer");
  at::_amp_update_scale_(scale_,
                         growth_tracker_,
                         found_inf,
                         growth_factor_,
                         backoff_factor_,
                         growth_interval_);
  progress_.clear();
}

void GradScaler::update(double new_scale) {
  if (!enabled_) {
    return;
  }
  check_scaled("update()");
  scale_.fill_(checked_scale(new_scale));
  progress_.clear();
}

double GradScaler::get_scale() const {
  if (!enabled_) {
    return 1;
  }
  return scale_.defined() ? scale_.item<float>() : first_scale_;
}

void GradScaler::set_growth_factor(double factor) {
  growth_factor_ = checked_growth(factor);
}

void GradScaler::set_backoff_factor(double factor) {
  backoff_factor_ = checked_backoff(factor);
}

/// LibTorch's scale grows when the count equals the interval, not beyond it, so
/// the count must stay below. LibTorch counts in 32 bits.
void GradScaler::set_growth_interval(int64_t interval) {
  growth_interval_ = checked_interval(interval);
  const int64_t most = std::min<int64_t>(interval - 1, INT32_MAX);
  first_tracker_ = std::min(first_tracker_, most);
  if (growth_tracker_.defined()) {
    growth_tracker_.clamp_max_(most);
  }
}

c10::IValue GradScaler::state_dict() const {
  auto state = detail::new_dict().toGenericDict();
  if (enabled_) {
    state.insert(kScale, get_scale());
    state.insert(kGrowthFactor, growth_factor_);
    state.insert(kBackoffFactor, backoff_factor_);
    state.insert(kGrowthInterval, growth_interval_);
    state.insert(kGrowthTracker,
                 growth_tracker_.defined()
                     ? int64_t{growth_tracker_.item<int>()}
                     : first_tracker_);
  }
  return state;
}

void GradScaler::check_state_dict(const c10::IValue& state) const {
  if (!enabled_) {
    return;
  }
  const detail::DictReader saved(state, "scaler");
  TORCH_CHECK(
      !saved.entries().empty(),
      "Expected the state of an enabled GradScaler, but got that of one "
      "that was not; go on with enabled(false), or without its state");
  checked_scale(saved.number(kScale));
  checked_growth(saved.number(kGrowthFactor));
  checked_backoff(saved.number(kBackoffFactor));
  checked_interval(saved.integer(kGrowthInterval));
  const auto tracker = saved.integer(kGrowthTracker);
  TORCH_CHECK(tracker >= 0,
              "Expected a growth_tracker of at least 0, but got ",
              tracker);
}

void GradScaler::load_state_dict(const c10::IValue& state) {
  check_state_dict(state);
  if (!enabled_) {
    return;
  }
  const detail::DictReader saved(state, "scaler");
  first_scale_ = saved.number(kScale);
  first_tracker_ = saved.integer(kGrowthTracker);
  growth_factor_ = saved.number(kGrowthFactor);
  backoff_factor_ = saved.number(kBackoffFactor);
  set_growth_interval(saved.integer(kGrowthInterval));
  if (scale_.defined()) {
    scale_.fill_(first_scale_);
    growth_tracker_.fill_(first_tracker_);
  }
}

}  // namespace ddp
