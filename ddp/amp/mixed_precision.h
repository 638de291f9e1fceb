#pragma once

#include <optional>

#include <c10/core/ScalarType.h>
#include <torch/arg.h>

namespace ddp {

/// Dtypes for `DistributedDataParallelOptions::mixed_precision`: a forward
/// through the wrapper computes in them, and its gradients are averaged in
/// them. Each is torch::kBFloat16, kHalf, kFloat or kDouble (another dtype
/// throws c10::Error when a module is wrapped), or std::nullopt for no
/// conversion. Integers, bools and complex numbers are never converted, and
/// neither are ignored tensors (`params_and_buffers_to_ignore`).
///
/// The parameters themselves never change: operators of the forward get copies,
/// one for each parameter and forward, and a new one after a write to the
/// parameter. The backward pass uses the copies and
/// returns their gradients in the parameter's dtype. Optimizers, checkpoints,
/// accumulated gradients, `module()` and layers that share a parameter
/// therefore see the parameter in its own dtype at any time, also under a
/// NoGradGuard and after an exception. PyTorch's DistributedDataParallel with
/// `mixed_precision` instead replaces the parameters' data until the end of the
/// backward pass.
///
/// Only arguments of operators are converted: `weight.dtype()` in a forward
/// returns the parameter's own dtype, direct access to its memory
/// (`data_ptr()`, `accessor`, `data()`) reads the parameter itself, and so does
/// the backward of a custom autograd function that saved it. An operator that
/// writes to a parameter gets the parameter, and so do operators that the
/// forward calls on a thread of its own. For products in a narrow dtype and
/// sums in float, without a cast of inputs and buffers, use `AutocastGuard`.
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
  /// Dtype of parameters in a forward, and of the floating-point tensors among
  /// its arguments, also in vectors, arrays, tuples, pairs, maps, optionals and
  /// structs with `tensor_fields`. The forward gets copies of these arguments:
  /// an assignment to one of them, or a write to a converted tensor, does not
  /// reach the caller. Arguments of other types, arguments that cannot be
  /// copied and outputs are not converted. A module that contains a
  /// `ScriptModule` throws c10::Error when it is wrapped with a param_dtype.
  TORCH_ARG(std::optional<c10::ScalarType>, param_dtype) = std::nullopt;
  /// Dtype in which gradients are sent and summed (`CastExchange`);
  /// std::nullopt for param_dtype. Neither dtype is used by an `exchange` of
  /// your own, and a reduce_dtype beside it throws c10::Error when the module
  /// is wrapped: put a `CastExchange` around the exchange instead.
  TORCH_ARG(std::optional<c10::ScalarType>, reduce_dtype) = std::nullopt;
  /// Dtype of buffers, which are converted permanently when the module is
  /// wrapped. A batch norm with weights needs them in param_dtype.
  TORCH_ARG(std::optional<c10::ScalarType>, buffer_dtype) = std::nullopt;
};

}  // namespace ddp
