#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/reduce/detail/gradient_buckets.h"
#include "ddp/reduce/detail/missing_policy.h"

namespace ddp::detail {

/// Gradients may be missing; what no rank has used in the first pass is taken
/// as unused in every later one and left out of the plan, so nobody sends it
/// and only the first pass has a used map.
/// @param buckets  must outlive the policy.
std::unique_ptr<MissingPolicy> learn_unused(
    c10::intrusive_ptr<c10d::Backend> group, const GradientBuckets& buckets);

}  // namespace ddp::detail
