#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace ddp::detail {

/// Multiplies the gradients of an optimizer's parameters by `factor`, in place;
/// of sparse ones the values; of a tied parameter, which the optimizer may list
/// several times, once. Waits for no device.
///
/// @param factor  one float, on any device.
/// @returns one float on that device, above 0 when a gradient held inf or NaN;
///   undefined when no parameter has a gradient.
/// @throws c10::Error for a gradient of float16; nothing is changed then.
at::Tensor unscale_gradients(const torch::optim::Optimizer& optimizer,
                             const at::Tensor& factor);

}  // namespace ddp::detail
