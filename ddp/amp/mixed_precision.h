#pragma once

#include <optional>

#include <c10/core/ScalarType.h>
#include <torch/arg.h>

namespace ddp {

/// Dtypes for `DistributedDataParallelOptions::mixed_precision`: of gradients
/// in transit and of buffers. Each is torch::kBFloat16, kHalf, kFloat or
/// kDouble (another dtype throws c10::Error when a module is wrapped), or
/// std::nullopt for no conversion. Integers, bools and complex numbers are
/// never converted, and neither are ignored tensors
/// (`params_and_buffers_to_ignore`).
///
/// The forward computes in the dtypes of the parameters and inputs. For a
/// forward in a narrow dtype use `AutocastGuard`.
///
/// Example:
/// @code
///   ddp::DistributedDataParallel model(
///       net,
///       ddp::DistributedDataParallelOptions().mixed_precision(
///           ddp::MixedPrecision().reduce_dtype(torch::kBFloat16)));
///   const ddp::AutocastGuard autocast(
///       device.type(), ddp::AutocastOptions().dtype(torch::kBFloat16));
///   auto loss = torch::nll_loss(model(data), target);
/// @endcode
struct MixedPrecision {
  /// Dtype in which gradients are sent and summed (`CastExchange`). A
  /// reduce_dtype beside an `exchange` of your own throws c10::Error when the
  /// module is wrapped: put a `CastExchange` around the exchange instead.
  TORCH_ARG(std::optional<c10::ScalarType>, reduce_dtype) = std::nullopt;
  /// Dtype of buffers, which are converted permanently when the module is
  /// wrapped. The operators of the forward must accept it: a batch norm with
  /// weights needs its buffers in the dtype of the weights.
  TORCH_ARG(std::optional<c10::ScalarType>, buffer_dtype) = std::nullopt;
};

}  // namespace ddp
