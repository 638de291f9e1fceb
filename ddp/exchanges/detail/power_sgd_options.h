#pragma once

#include "ddp/exchanges/power_sgd.h"

namespace ddp::detail {

/// Returns the options unchanged.
/// @throws c10::Error if an option is out of range.
const PowerSGDOptions& checked(const PowerSGDOptions& options);

/// Throws on every rank if the ranks' options differ: collectives of unequal
/// sizes would block for ever or add unrelated elements. Collective.
///
/// @param device  a device whose tensors the backend accepts.
void expect_same_options(c10d::Backend& group,
                         c10::Device device,
                         const PowerSGDOptions& options);

}  // namespace ddp::detail
