#pragma once

#include <atomic>

namespace ddp::detail {

/// How the ranks of a job agree on the pass after which they stop: each that
/// knows of the stop says so in its passes, each that hears it from another
/// says it, too, and the first pass in which all have said it is the last.
/// Any thread.
class StopVote {
 public:
  /// From now on this rank says so.
  void say() noexcept { says_ = true; }
  bool says() const noexcept { return says_; }

  /// What a pass has told: whether any rank has said it, and whether all have.
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
