#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "ddp/optim/detail/fused_batches.h"

namespace ddp {

/// torch::optim::SGD, Adam and AdamW whose step is one call of LibTorch's fused
/// kernels (`at::_fused_sgd_` and so on) for many parameters, where LibTorch's
/// own makes up to ten operators for each. On a GPU that is a few launches; on
/// the CPU each value is read and written once, and small parameters are shared
/// out among LibTorch's threads, a call each. Python's `fused=True`.
///
/// They are LibTorch's optimizers in all else: constructors, options, param
/// groups, state, `torch::save`, `ddp::Checkpoint`, schedulers. A file of one
/// loads in the other, in the middle of a training too.
///
/// The results are LibTorch's up to rounding: a kernel rounds once where
/// several operators round several times.
///
/// What the kernels do not take is stepped by LibTorch's own optimizer, in the
/// same call: sparse gradients (SGD; Adam refuses them, as LibTorch's does),
/// complex parameters, gradients or state of another dtype or memory layout
/// than the parameter, memory with gaps, devices other than CPU and CUDA, and
/// on the CPU parameters of float16 and bfloat16. Parameters without a gradient
/// are left out.
///
/// A step counts as a modification for autograd: a backward pass through a
/// graph that needs the values from before it throws. (LibTorch's SGD writes
/// past that, and such a pass gives wrong gradients.)
///
/// With `ddp::GradScaler` as any other: it divides the gradients by the scale
/// where it looks for inf and NaN.
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
  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  detail::FusedBatches batches_;
};

/// See `FusedSGD`.
class FusedAdam : public torch::optim::Adam {
 public:
  using Adam::Adam;
  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  detail::FusedBatches batches_;
};

/// See `FusedSGD`.
class FusedAdamW : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;
  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  detail::FusedBatches batches_;
};

}  // namespace ddp
