#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/amp/mixed_precision.h"
#include "ddp/exchanges/exchange.h"

namespace ddp::detail {

/// Returns the exchange of a wrapper: the user's `own` one if it is set, a
/// `CastExchange` if the precision sets reduce_dtype, else null (gradients are
/// exchanged in their own dtype).
/// @param group  null if this rank has no peers; the function then adds no
///   exchange.
/// @throws c10::Error if a dtype of the precision is not kBFloat16, kHalf,
///   kFloat or kDouble, or if both `own` and reduce_dtype are set.
std::shared_ptr<Exchange> choose_exchange(
    const MixedPrecision& precision,
    std::shared_ptr<Exchange> own,
    const c10::intrusive_ptr<c10d::Backend>& group);

/// Converts the floating-point buffers to `buffer_dtype` in place, if it is
/// set.
void cast_buffers(const MixedPrecision& precision,
                  const std::vector<at::Tensor>& buffers);

}  // namespace ddp::detail
