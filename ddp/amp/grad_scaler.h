#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/join.h"

namespace ddp {

/// Options of `GradScaler`; the defaults are PyTorch's.
///
/// Example:
/// @code
///   ddp::GradScaler scaler(
///       ddp::GradScalerOptions().init_scale(1024).enabled(uses_half));
/// @endcode
struct GradScalerOptions {
  /// The scale to begin with; positive.
  TORCH_ARG(double, init_scale) = 65536;
  /// What it is multiplied by after `growth_interval` steps; above 1.
  TORCH_ARG(double, growth_factor) = 2;
  /// The same after a step that was left out; between 0 and 1.
  TORCH_ARG(double, backoff_factor) = 0.5;
  /// Steps in a row, none of them left out, after which it grows; at least 1.
  TORCH_ARG(int64_t, growth_interval) = 2000;
  /// False: the scaler passes everything on as it is, so that one training loop
  /// serves with and without it.
  TORCH_ARG(bool, enabled) = true;
  /// The ranks that leave out a step together, when one of them has inf or NaN.
  /// Null, as with `DistributedDataParallel`: each decides by its own
  /// gradients, which are the same on all ranks. Needed where they are not: an
  /// optimizer that steps a part of the parameters on each rank, layers that
  /// only some ranks have. `unscale_` is then collective, one all-reduce of one
  /// number where the scale lies, also on a rank that has no gradients.
  TORCH_ARG(c10::intrusive_ptr<c10d::Backend>, process_group) = nullptr;
};

/// What a checkpoint keeps of a `GradScaler`: the entries of Python's
/// `scaler.state_dict()`.
struct GradScalerState {
  double scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  int64_t growth_tracker = 0;  ///< steps since the scale has changed
};

/// Keeps gradients of half precision from becoming zero: the loss is multiplied
/// by a large scale, and the gradients divided by it before the optimizer's
/// step. A step whose gradients hold inf or NaN is left out, and the scale goes
/// down; when none has for a while, it goes up. Python's torch.amp.GradScaler.
///
/// For `AutocastGuard` with torch::kHalf. bfloat16 has float's range and needs
/// none.
///
/// A ZeroRedundancyOptimizer stays out of that Join and steps in the function,
/// too.
///
/// The scale is a tensor where the first scaled one lies. The host waits for
/// the device only in `step`, once an optimizer, and in what gives a number.
///
/// In a `Join` the scaler is one of the joinables, and `finish` steps by it:
/// `join.finish([&] { scaler.step(optimizer); scaler.update(); })`. Without the
/// function a rank without inputs misses updates of the scale; at the end of
/// the Join all ranks then take the scale of the rank that was there to the
/// end. A rank that has had no input at all may step, too.
///
/// Thread contract: one thread. The optimizers must outlive the iteration.
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
class GradScaler : public Joinable {
 public:
  /// @throws c10::Error when a factor, the scale or the interval is not what
  ///   `GradScalerOptions` says.
  explicit GradScaler(const GradScalerOptions& options = {});
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  /// The output (a loss) times the scale; several, each on its own device.
  /// @throws c10::Error while a `Join` runs that this scaler is not in.
  at::Tensor scale(const at::Tensor& output);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  /// Divides the gradients of the optimizer's parameters by the scale, in
  /// place, and notes whether one holds inf or NaN. For what looks at gradients
  /// before the step, such as clipping; else `step` does it. Once all gradients
  /// of the step are there.
  ///
  /// @throws c10::Error when it has been called for this optimizer, or the
  ///   optimizer has stepped, since the last `update()`; before the first
  ///   `scale()`; for a gradient of float16, whose parameter should be float;
  ///   for an optimizer that is in the scaler's `Join`, whose step a rank
  ///   without inputs makes with gradients that are still scaled.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Calls `optimizer.step()`, unless a gradient holds inf or NaN.
  /// @returns whether it did: a learning rate's schedule counts these.
  /// @throws c10::Error when the optimizer has stepped since the last
  ///   `update()`, when none of its parameters has a gradient and no
  ///   `process_group` is set, or when the optimizer averages parameters over
  ///   ranks (`PostLocalSGDOptimizer`) and no `process_group` is set; and as
  ///   `unscale_`.
  bool step(torch::optim::Optimizer& optimizer);

  /// Ends the iteration, after the steps of all optimizers: the scale goes down
  /// if one of them was left out, else it may go up.
  /// @throws c10::Error when no optimizer has stepped since the last one.
  void update();

  /// Ends the iteration with a new scale; a tensor is copied.
  /// @param new_scale  positive; as a tensor, one number of floating point that
  ///   requires no gradient, and whose value is not looked at.
  /// @throws c10::Error before the first `scale()`, or for another value.
  void update(double new_scale);
  void update(const at::Tensor& new_scale);

  /// The scale now; 1 where the scaler is not enabled. Waits for the device.
  double get_scale() const;

  double get_growth_factor() const { return growth_factor_; }
  double get_backoff_factor() const { return backoff_factor_; }
  int64_t get_growth_interval() const { return growth_interval_; }
  /// @throws c10::Error as the constructor.
  void set_growth_factor(double factor);
  void set_backoff_factor(double factor);
  /// One that is over already lets the scale grow after the next good step.
  void set_growth_interval(int64_t interval);
  bool is_enabled() const { return enabled_; }

  /// What to save, after an `update()`; nothing where the scaler is not
  /// enabled. `ddp::Checkpoint::scaler` does both. Waits for the device.
  std::optional<GradScalerState> state_dict() const;
  /// Goes on from there. Does nothing where the scaler is not enabled.
  /// @throws c10::Error, and changes nothing, for the nothing of a scaler that
  ///   was not enabled, or for numbers that the constructor does not take.
  void load_state_dict(const std::optional<GradScalerState>& state);
  /// Throws as `load_state_dict` would, and changes nothing.
  void check_state_dict(const std::optional<GradScalerState>& state) const;

  /// For `Join`.
  std::string join_name() const override;
  c10::intrusive_ptr<c10d::Backend> join_group() const override {
    return group_;
  }
  c10::Device join_device() const override;
  void take_part(const JoinTurn& /*turn*/) override {}
  void end_join(int source) override;

 private:
  enum class Stage { ready, unscaled, stepped };
  /// Of an optimizer, since the last update.
  struct Progress {
    Stage stage = Stage::ready;
    at::Tensor found_inf;  // undefined where no gradient was looked at
  };

  void check_scaled(const char* call) const;
  void check_averaging(const torch::optim::Optimizer& optimizer) const;
  void check_out_of_join(const torch::optim::Optimizer& optimizer) const;
  void prepare(c10::Device device);
  void prepare_in_join(const torch::optim::Optimizer& optimizer);
  at::Tensor agreed(const at::Tensor& found_inf,
                    const torch::optim::Optimizer& optimizer) const;

  bool enabled_;
  double growth_factor_;
  double backoff_factor_;
  int64_t growth_interval_;
  c10::intrusive_ptr<c10d::Backend> group_;
  double first_scale_;  // until there is a tensor
  int64_t first_tracker_ = 0;
  at::Tensor scale_;
  at::Tensor growth_tracker_;
  std::unordered_map<const torch::optim::Optimizer*, Progress> progress_;
};

}  // namespace ddp
