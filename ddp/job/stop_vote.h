#pragma once

#include <atomic>

namespace ddp::detail {

/// Agreement of a job's ranks on the pass after which they stop. Each rank that
/// knows of the stop request votes for it in its passes. A rank that receives
/// a vote votes, too. The ranks stop after the first pass in which all
/// have voted. Thread-safe.
class StopVote {
 public:
  /// From now on this rank votes to stop.
  void say() noexcept { says_ = true; }
  bool says() const noexcept { return says_; }

  /// Records the result of a pass: whether any rank and whether all have voted.
  void hear(bool any, bool all) noexcept {
    if (any) {
      says_ = true;
    }
    if (all) {
      is_agreed_ = true;
    }
  }
  bool is_agreed() const noexcept { return is_agreed_; }

 private:
  std::atomic<bool> says_{false};
  std::atomic<bool> is_agreed_{false};
};

}  // namespace ddp::detail
