#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/reduce/detail/gradient_buckets.h"
#include "ddp/reduce/detail/pass_account.h"

namespace ddp::detail {

/// How a pass has ended for all ranks.
struct Settlement {
  std::vector<size_t> unused;  ///< parameters whose `.grad` stays; ascending
  std::string error;           ///< "" when all is well
  /// The ranks' parameters differ from now on, so that no pass can follow.
  bool is_final = false;
};

/// What it means that parameters got no gradient in a pass that is reduced, and
/// how the ranks find out whether they agree on the pass. Told of a pass in the
/// order of these functions, on every rank.
class MissingPolicy {
 public:
  virtual ~MissingPolicy() = default;

  /// Whether every pass is to bring every gradient, so that the order of one
  /// pass is a plan for the next.
  virtual bool expects_all() const = 0;

  /// What is known by now of passes before, "" for nothing bad. On the CPU they
  /// are settled; on a GPU their verdicts come later. Never waits.
  virtual std::string late_error() = 0;

  /// Before the plan is made: what no rank has used, and none ever will, in
  /// ascending order; it may communicate.
  virtual std::vector<size_t> never_used(const PassAccount& /*mine*/) {
    return {};
  }

  /// This rank's account of the pass, before the last bucket starts.
  virtual void note(const PassAccount& mine) = 0;

  /// All buckets have started.
  virtual void start() = 0;

  /// All buckets have finished.
  virtual Settlement settle(const PassAccount& mine) = 0;

  /// The pass has ended before, and none follows: lets go of works.
  virtual void abandon() noexcept {}
};

/// Of those without a gradient in this pass, what had none before it either
/// that is still there.
std::vector<size_t> without_gradient(const GradientBuckets& buckets,
                                     const PassAccount& account);

/// "a.weight, a.bias": in messages.
std::string names_of(const GradientBuckets& buckets,
                     const std::vector<size_t>& indices);

/// A missing gradient on one rank is an error on all, with its name: on the CPU
/// in this pass; on a GPU, in this pass on that rank, as a late error on the
/// others. Ranks tell each other by the spare elements of the buckets.
///
/// @param buckets  must outlive the policy.
std::unique_ptr<MissingPolicy> refuse_missing(
    c10::intrusive_ptr<c10d::Backend> group, const GradientBuckets& buckets);

/// A parameter may be unused: what some rank has used is averaged, with zeros
/// of the others, and what none has used keeps its `.grad`. Costs an all-reduce
/// of one number a parameter; on a GPU a rank waits for its result only where
/// it has unused parameters itself.
std::unique_ptr<MissingPolicy> allow_unused(
    c10::intrusive_ptr<c10d::Backend> group, const GradientBuckets& buckets);

}  // namespace ddp::detail
