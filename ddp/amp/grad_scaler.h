#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/checkpoint/state/stateful.h"

namespace ddp {

/// Options of `GradScaler`; the defaults are PyTorch's.
///
/// Example:
/// @code
///   ddp::GradScaler scaler(
///       ddp::GradScalerOptions().init_scale(1024).enabled(uses_half));
/// @endcode
struct GradScalerOptions {
  /// Initial scale; positive.
  TORCH_ARG(double, init_scale) = 65536;
  /// Factor of the scale after `growth_interval` good iterations; above 1.
  TORCH_ARG(double, growth_factor) = 2;
  /// Factor of the scale after a skipped step; between 0 and 1.
  TORCH_ARG(double, backoff_factor) = 0.5;
  /// Number of consecutive calls of `update()` without inf or NaN in a gradient
  /// before the scale grows; at least 1.
  TORCH_ARG(int64_t, growth_interval) = 2000;
  /// If false, the scaler passes tensors and steps on unchanged, so that one
  /// training loop works with and without it.
  TORCH_ARG(bool, enabled) = true;
  /// Ranks that skip a step together if any of them has inf or NaN. Null, as
  /// with `DistributedDataParallel`: each rank decides by its own gradients,
  /// which are the same on all ranks if the scales are the same. The ranks do
  /// not compare the scales: without equal options, loaded states and calls of
  /// `update` their parameters become different without an error. Needed if
  /// gradients differ between ranks: for an optimizer that has a part of the
  /// parameters on each rank, or layers that only some ranks have. A
  /// `ZeroRedundancyOptimizer` has all parameters and does not need it.
  /// `unscale_`, also within `step`, is then collective: one all-reduce of five
  /// numbers on the device of the scale, also on a rank without gradients.
  /// Scales or growth trackers that differ between ranks are an error of `step`
  /// on all of them.
  TORCH_ARG(c10::intrusive_ptr<c10d::Backend>, process_group) = nullptr;
};

/// Prevents gradients of half precision from becoming zero: multiplies the loss
/// by a large scale, and divides the gradients by it before the optimizer's
/// step. If the gradients contain inf or NaN, the scaler skips the step and
/// reduces the scale. The scale grows after a number of steps without inf or
/// NaN. Corresponds to Python's torch.amp.GradScaler.
///
/// Use it for `AutocastGuard` with torch::kHalf. bfloat16 has the range of
/// float and needs no scaler.
///
/// The scale is a tensor on the device of the first scaled tensor. The host
/// waits for the device only in `step`, once per optimizer, and in functions
/// that return a number of the scale's state.
///
/// A `Join` refuses an enabled scaler.
///
/// Thread contract: one thread. Each optimizer must outlive the iteration.
///
/// Example:
/// @code
///   ddp::GradScaler scaler;
///   for (auto& batch : *loader) {
///     optimizer.zero_grad();
///     scaler.scale(loss_of(batch)).backward();  // under an AutocastGuard
///     scaler.unscale_(optimizer);               // only to clip
///     torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
///     if (scaler.step(optimizer)) ++steps;
///     scaler.update();
///   }
/// @endcode
///
/// Source: torch/amp/grad_scaler.py of PyTorch 2.11.
class GradScaler : public Stateful {
 public:
  /// @throws c10::Error if a factor, the scale or the interval is out of the
  ///   range in `GradScalerOptions`.
  explicit GradScaler(const GradScalerOptions& options = {});
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  /// Returns the output (a loss) times the scale; a list may contain outputs on
  /// different devices.
  /// @throws c10::Error for an undefined output, or in a `Join` in which ranks
  ///   continue without inputs.
  at::Tensor scale(const at::Tensor& output);
  /// As above, for a list of outputs.
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  /// Divides the gradients of the optimizer's parameters by the scale, in
  /// place, and records whether any of them contains inf or NaN. Call it only
  /// if other code needs the gradients before the step, for example clipping;
  /// otherwise `step` does it. Call it when all gradients of the step have been
  /// computed.
  ///
  /// @throws c10::Error if it was already called for this optimizer, or the
  ///   optimizer has stepped, since the last `update()`; before the first
  ///   `scale()`; for a gradient of float16 or a complex dtype, or of bfloat16
  ///   on a GPU (keep parameters in float); with a `process_group`, if a rank
  ///   has left or the group's time-out is over.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Calls `optimizer.step()` unless a gradient contains inf or NaN.
  /// @returns true if the optimizer stepped; count only these steps for a
  ///   learning rate schedule.
  /// @throws c10::Error if the optimizer has stepped since the last `update()`;
  ///   if ranks of the `process_group` have different scales or growth
  ///   trackers; if none of its parameters has a gradient and no
  ///   `process_group` is set; and as `unscale_`, if that was not called
  ///   before.
  bool step(torch::optim::Optimizer& optimizer);

  /// Ends the iteration. Call it after the steps of all optimizers. Reduces the
  /// scale if a step was skipped. Increases the scale after `growth_interval`
  /// calls without a skipped step.
  /// @throws c10::Error if no gradients were checked (by `step` or `unscale_`)
  ///   since the last update.
  void update();

  /// Ends the iteration with a new scale.
  /// @throws c10::Error before the first `scale()`, or if the new scale is not
  ///   positive and finite.
  void update(double new_scale);

  /// Returns the current scale; 1 if the scaler is disabled. Waits for the
  /// device.
  double get_scale() const;

  /// Returns the factor by which the scale grows.
  double get_growth_factor() const { return growth_factor_; }
  /// Returns the factor of the scale after a skipped step.
  double get_backoff_factor() const { return backoff_factor_; }
  /// Returns the number of good updates after which the scale grows.
  int64_t get_growth_interval() const { return growth_interval_; }
  /// Sets the factor by which the scale grows.
  /// @throws c10::Error as the constructor.
  void set_growth_factor(double factor);
  /// Sets the factor of the scale after a skipped step.
  /// @throws c10::Error as the constructor.
  void set_backoff_factor(double factor);
  /// Sets the interval. If it has already passed since the last change, the
  /// scale grows after the next successful step.
  /// @throws c10::Error as the constructor.
  void set_growth_interval(int64_t interval);
  /// Returns `GradScalerOptions::enabled`.
  bool is_enabled() const { return enabled_; }

  /// Returns the entries of Python's `scaler.state_dict()`, after an
  /// `update()`: "scale", "growth_factor", "backoff_factor", "growth_interval",
  /// "_growth_tracker"; an empty dict if the scaler is disabled. Waits for the
  /// device. `ddp::Checkpoint` saves and loads them.
  c10::IValue state_dict() const override;
  /// Throws if `load_state_dict` would throw, and changes nothing.
  void check_state_dict(const c10::IValue& state) const override;
  /// Continues from a saved state. Does nothing if the scaler is disabled.
  /// @throws c10::Error, without any change, for an empty dict (the state of a
  ///   disabled scaler), a missing entry, numbers that the constructor does not
  ///   accept, or a negative "_growth_tracker".
  void load_state_dict(const c10::IValue& state) override;

 private:
  enum class Stage { ready, unscaled, stepped };
  /// State of an optimizer since the last update.
  struct Progress {
    Stage stage = Stage::ready;
    at::Tensor found_inf;  // undefined if no gradient was checked
    at::Tensor most;       // see most_of_ranks()
  };

  void check_scaled(const char* call) const;
  void prepare(c10::Device device);
  /// Returns the largest of all ranks' values of found_inf, the scale, the
  /// negated scale, the growth tracker and the negated tracker.
  at::Tensor most_of_ranks(const at::Tensor& found_inf) const;
  void check_equal(const at::Tensor& most) const;

  bool enabled_;
  double growth_factor_;
  double backoff_factor_;
  int64_t growth_interval_;
  c10::intrusive_ptr<c10d::Backend> group_;
  double first_scale_;  // used until scale_ is defined
  int64_t first_tracker_ = 0;
  at::Tensor scale_;
  at::Tensor growth_tracker_;
  std::unordered_map<const torch::optim::Optimizer*, Progress> progress_;
};

}  // namespace ddp
