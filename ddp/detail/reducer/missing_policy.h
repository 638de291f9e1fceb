#pragma once

#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/detail/reducer/gradient_buckets.h"

namespace ddp::detail {

/// What it means that parameters got no gradient in a pass that is reduced, and
/// how the ranks agree on it. Told of a pass in the order of these functions,
/// on every rank.
class MissingPolicy {
 public:
  virtual ~MissingPolicy() = default;

  /// Whether every pass is to bring every gradient, so that the order of one
  /// pass is a plan for the next.
  virtual bool expects_all() const = 0;

  /// The buckets have new memory.
  virtual void bind() = 0;

  /// This rank's missing gradients, before the last bucket starts.
  virtual void note(const std::vector<size_t>& missing) = 0;

  /// All buckets have started.
  virtual void start() = 0;

  /// All buckets have finished. Returns, in ascending order, the parameters
  /// whose `.grad` is to stay as it is.
  /// @throws c10::Error on every rank when missing gradients are an error.
  virtual std::vector<size_t> settle(const std::vector<size_t>& missing) = 0;
};

/// A missing gradient on one rank is an error on all, with its name. Ranks tell
/// each other by the spare element of the buckets.
///
/// @param buckets  must outlive the policy.
std::unique_ptr<MissingPolicy> refuse_missing(
    c10::intrusive_ptr<c10d::Backend> group, const GradientBuckets& buckets);

/// A parameter may be unused: what some rank has used is averaged, with zeros
/// of the others, and what none has used keeps its `.grad`. Costs an all-reduce
/// of one number a parameter.
std::unique_ptr<MissingPolicy> allow_unused(
    c10::intrusive_ptr<c10d::Backend> group, const GradientBuckets& buckets);

}  // namespace ddp::detail
