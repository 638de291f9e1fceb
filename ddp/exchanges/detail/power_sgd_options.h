#pragma once

#include "ddp/exchanges/power_sgd.h"

namespace ddp::detail {

/// The options as they are. @throws c10::Error for what PowerSGD cannot work
/// with.
const PowerSGDOptions& checked(const PowerSGDOptions& options);

/// Throws on every rank where one has others: ranks that send other sizes would
/// wait for ever, or add up what does not belong together. Collective.
///
/// @param device  where the backend takes tensors.
void expect_same_options(c10d::Backend& group,
                         c10::Device device,
                         const PowerSGDOptions& options);

}  // namespace ddp::detail
