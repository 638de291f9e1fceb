#pragma once

#include <optional>

#include <c10/core/ScalarType.h>
#include <torch/arg.h>

namespace ddp {

/// What `DistributedDataParallelOptions::mixed_precision` takes: the dtypes in
/// which a forward through the wrapper computes and its gradients are averaged.
/// Each is torch::kBFloat16, kHalf, kFloat or kDouble, or unset: as it is.
/// Integers, bools and complex numbers stay in any case, and so do the ignored
/// (`params_and_buffers_to_ignore`).
///
/// Parameters themselves never change: operators of the forward are given
/// copies, one a parameter and forward, which the backward pass uses and whose
/// gradients come back in the parameter's dtype. So optimizers, checkpoints,
/// accumulated gradients, `module()` and layers that share a parameter see it
/// as it was wrapped, at any time, also under a NoGradGuard and after an
/// exception. What PyTorch's wrapper does with `mixed_precision`, which
/// exchanges the parameters' data until the end of the backward pass instead.
///
/// What is not given to an operator is not seen: a forward that asks
/// `weight.dtype()` is told the parameter's own, one that reads its memory
/// (`data_ptr()`, `accessor`, `data()`) reads that, and what it saves in an
/// autograd function of its own comes back so in the backward. An operator that
/// writes to a parameter gets the parameter. Products in a narrow dtype and
/// sums in float, without a cast of inputs and buffers, are `AutocastGuard`'s.
///
/// With kHalf use a `GradScaler`.
///
/// Example:
/// @code
///   ddp::DistributedDataParallel model(
///       net,
///       ddp::DistributedDataParallelOptions().mixed_precision(
///           ddp::MixedPrecision()
///               .param_dtype(torch::kBFloat16)
///               .reduce_dtype(torch::kFloat)));
///   auto loss = torch::nll_loss(model(data).to(torch::kFloat), target);
/// @endcode
struct MixedPrecision {
  /// Of parameters in a forward, and of the floating tensors among its
  /// arguments, also in vectors, arrays, tuples, pairs, maps, optionals and
  /// structs with `tensor_fields`. Outputs are what they come as.
  TORCH_ARG(std::optional<c10::ScalarType>, param_dtype) = std::nullopt;
  /// In which gradients travel and are added up (`CastExchange`); unset:
  /// param_dtype. With an `exchange` of your own leave it unset: that one
  /// decides.
  TORCH_ARG(std::optional<c10::ScalarType>, reduce_dtype) = std::nullopt;
  /// Of buffers, which are converted when the module is wrapped and stay so. On
  /// the CPU a batch norm wants them in param_dtype.
  TORCH_ARG(std::optional<c10::ScalarType>, buffer_dtype) = std::nullopt;
};

}  // namespace ddp
