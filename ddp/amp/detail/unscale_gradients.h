#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace ddp::detail {

/// Multiplies the gradients of an optimizer's parameters by `factor`, in place:
/// for a sparse gradient its values, and for a tied parameter, which the
/// optimizer may list several times, only once. Waits for a device only if the
/// factor or a result must be copied to the host.
///
/// @param factor  one float, on any device.
/// @returns one float on that device, above 0 if a gradient contained inf or
///   NaN; undefined if no parameter has a gradient.
/// @throws c10::Error for a gradient of float16; nothing is changed then. For
///   another dtype that LibTorch cannot unscale (complex, bfloat16 on a GPU),
///   gradients of other dtypes may have been changed.
at::Tensor unscale_gradients(const torch::optim::Optimizer& optimizer,
                             const at::Tensor& factor);

}  // namespace ddp::detail
