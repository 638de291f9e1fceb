#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/reduce/detail/gradient_buckets.h"
#include "ddp/reduce/detail/missing_policy.h"

namespace ddp::detail {

/// A pass that brings every gradient costs what it costs where a missing one
/// is an error. One that does not is settled a second time, by the used map;
/// the first such pass is a warning on rank 0 that names ranks and parameters.
/// Nothing is exchanged again: the buckets hold zeros where a gradient was
/// missing, so their averages are right already.
///
/// On a GPU, where no rank knows in a pass what the others have missed, the
/// used map goes with every pass, and each rank warns of its own.
///
/// @param buckets  must outlive the policy.
std::unique_ptr<MissingPolicy> find_unused_on_demand(
    c10::intrusive_ptr<c10d::Backend> group, const GradientBuckets& buckets);

}  // namespace ddp::detail
