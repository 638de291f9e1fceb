#pragma once

#include <memory>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace ddp {

/// torch::optim::SGD, Adam and AdamW with a faster step: one call of LibTorch's
/// fused kernels (`at::_fused_sgd_` and so on) steps many parameters, whereas
/// LibTorch's own step calls up to ten operators for each parameter. On a GPU a
/// step needs only a few kernel launches. On the CPU each value is read and
/// written once. Corresponds to Python's `fused=True`.
///
/// In all other respects these are LibTorch's optimizers: constructors,
/// options, param groups, state, `torch::save`, `ddp::Checkpoint`, schedulers.
/// A file of the fused optimizer loads into the plain one and vice versa, also
/// in the middle of a training.
///
/// The results equal LibTorch's up to rounding: a kernel rounds once where
/// several operators round several times.
///
/// `step` uses LibTorch's own optimizer for parameters that the kernels do not
/// support: sparse gradients (SGD; Adam throws for them, as LibTorch's does),
/// gradients or state of another dtype or memory layout than the parameter,
/// memory with gaps, devices other than CPU and CUDA, and on the CPU parameters
/// of float16 and bfloat16. It also uses LibTorch's optimizer for all
/// parameters of a group in which some share memory or one is listed several
/// times, as LibTorch's `parameters()` lists a tied parameter; that parameter
/// is stepped as often. (`parameters()` of a `DistributedDataParallel` lists
/// each parameter once.) Parameters without a gradient are skipped.
///
/// Complex parameters are stepped as pairs of real numbers, as in Python.
/// (LibTorch's Adam and AdamW square the complex gradient.) Adam and AdamW
/// throw c10::Error for a complex parameter that the kernels do not support.
///
/// A step counts as a modification for autograd: a backward pass through a
/// graph that needs the values from before the step throws. (LibTorch's SGD,
/// also for the parameters that it steps for `FusedSGD`, bypasses this check,
/// and the pass computes wrong gradients.)
///
/// `ddp::GradScaler` works as with any other optimizer: it divides the
/// gradients by the scale while it checks them for inf and NaN.
///
/// Thread contract: one thread.
///
/// Example:
/// @code
///   ddp::FusedAdamW optimizer(model->parameters(),
///                             torch::optim::AdamWOptions(3e-4));
/// @endcode
class FusedSGD : public torch::optim::SGD {
 public:
  using SGD::SGD;
  /// Steps all parameters that have a gradient.
  /// @param closure  if given, called first, with gradient recording enabled.
  /// @returns the closure's loss; undefined without a closure.
  torch::Tensor step(LossClosure closure = nullptr) override;
};

/// Fused Adam; see `FusedSGD`.
class FusedAdam : public torch::optim::Adam {
 public:
  using Adam::Adam;
  /// As `FusedSGD::step`.
  torch::Tensor step(LossClosure closure = nullptr) override;
};

/// Fused AdamW; see `FusedSGD`.
class FusedAdamW : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;
  /// As `FusedSGD::step`.
  torch::Tensor step(LossClosure closure = nullptr) override;
};

namespace detail {

/// A step of a fused optimizer in a CUDA graph, for `GraphedStep`. The kernels
/// read the learning rates, as float32, and the numbers of steps from the
/// device. Corresponds to PyTorch's `capturable`. Steps outside of the graph,
/// the optimizer's state and checkpoints stay as they are.
class RecordedFusedStep {
 public:
  virtual ~RecordedFusedStep() = default;

  /// Makes the step, once, while the current stream records. The numbers of
  /// steps in the optimizer's state do not change.
  /// @throws c10::Error if a parameter with a gradient had none in an earlier
  ///   step, or if the kernels do not support one.
  virtual void record() = 0;

  /// Returns whether a replay is the step that the optimizer would make now:
  /// apart from the rates, options have not changed, and the parameters of one
  /// kernel have made the same number of steps.
  /// @throws c10::Error if a parameter or a state has other memory than when
  ///   this object was made.
  virtual bool is_current() const = 0;

  /// Writes learning rates and numbers of steps that have changed outside of
  /// replays to the device. `is_current` holds.
  virtual void before_replay() = 0;
  /// Counts the step in the optimizer's state.
  virtual void after_replay() = 0;
};

/// Copies the learning rates and the numbers of steps to the device.
/// @param optimizer  must outlive the result.
/// @throws c10::Error if it is none of the fused optimizers.
std::unique_ptr<RecordedFusedStep> make_recorded_step(
    torch::optim::Optimizer& optimizer);

}  // namespace detail

}  // namespace ddp
