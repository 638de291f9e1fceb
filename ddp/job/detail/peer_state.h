#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/detail/departure.h"
#include "ddp/job/stop_vote.h"

namespace ddp::detail {

/// What a rank knows of its job: how far it has come, and who has left. Shared
/// by all groups of the job. Any thread; nothing here communicates.
class PeerState {
 public:
  /// This rank begins a backward pass that is reduced.
  void note_pass() noexcept { passes_.fetch_add(1, std::memory_order_relaxed); }
  int64_t passes() const noexcept {
    return passes_.load(std::memory_order_relaxed);
  }

  /// Records that a rank has left. The first departure of each rank counts; a
  /// rank that was `destroyed` and then `vanished` before it had closed its
  /// groups has vanished: what it had queued is lost.
  /// @returns false when the departure says nothing new to the other ranks.
  bool note(const Departure& departure);
  /// What `note` would return.
  bool is_news(const Departure& departure) const;

  /// How many ranks have left.
  int departures() const noexcept {
    return departures_.load(std::memory_order_acquire);
  }

  /// How a rank has left, if it has.
  std::optional<Departure> departure_of(int rank) const;

  /// All of them, in the order in which they were heard of.
  std::vector<Departure> all_departures() const;

  /// Who has left first, of these ranks.
  std::optional<Departure> first_departure(const std::vector<int>& ranks) const;

  /// The same; waits for one, at most `timeout`.
  std::optional<Departure> wait_for_departure(
      const std::vector<int>& ranks, std::chrono::milliseconds timeout) const;

  /// Who has left first, but by ddp::destroy_process_group(); waits for one, at
  /// most `timeout`.
  std::optional<Departure> wait_for_failure(
      std::chrono::milliseconds timeout) const;

  /// Waits until so many ranks have left, at most `timeout`.
  void wait_for_departures(int count, std::chrono::milliseconds timeout) const;

  /// The program was told by an exception that a rank has left.
  void mark_told() noexcept { is_told_ = true; }
  bool is_told() const noexcept { return is_told_; }

  /// Of this rank; the passes over the group of all ranks tell it.
  StopVote& stop_vote() noexcept { return stop_vote_; }

  /// "" when all is well, else one line, an error. It may wait for the GPU as
  /// long as it is told.
  using Check = std::function<std::string(std::chrono::milliseconds patience)>;

  /// Has `ddp::destroy_process_group()` ask `check`, on its thread, before the
  /// groups are closed. What the check says is thrown when the job has been
  /// left. It must not communicate. It is not asked where a collective misses a
  /// rank that has left: that is the error then. It owns what it uses, unless
  /// it is removed before that goes.
  size_t add_check(Check check);
  void remove_check(size_t id);
  /// Asks all checks, in the order in which they were added, and forgets them.
  /// Returns what they have said, without what was "".
  std::vector<std::string> ask_checks(std::chrono::milliseconds patience);

 private:
  std::atomic<int64_t> passes_{0};
  std::atomic<int> departures_{0};
  std::atomic<bool> is_told_{false};
  StopVote stop_vote_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<Departure> order_;  // of departures
  std::map<size_t, Check> checks_;
  size_t next_check_ = 0;
};

/// The record of the job that `group` belongs to, also when other backends
/// forward to it. A group that the user made has an empty one, a new one for
/// each call. Never null. Ask once, not in every step.
std::shared_ptr<PeerState> peer_state_of(const c10d::Backend& group);

}  // namespace ddp::detail
