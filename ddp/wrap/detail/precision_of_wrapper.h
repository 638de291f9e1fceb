#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/amp/mixed_precision.h"
#include "ddp/exchanges/exchange.h"

namespace ddp::detail {

/// The exchange of a wrapper with this precision: the user's own, or null for
/// the usual one, where gradients travel as they are.
/// @param group  null where there is nobody to exchange with.
/// @throws c10::Error when a dtype is not one to compute in, or when both
///   `own` and a reduce_dtype say how gradients travel.
std::shared_ptr<Exchange> exchange_in(
    const MixedPrecision& precision,
    std::shared_ptr<Exchange> own,
    const c10::intrusive_ptr<c10d::Backend>& group);

/// Converts the floating ones, in place.
void cast_buffers(const MixedPrecision& precision,
                  const std::vector<at::Tensor>& buffers);

}  // namespace ddp::detail
