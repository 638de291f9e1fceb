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

/// State of a job as seen by this rank: its own progress and the departures of
/// other ranks. All groups of the job share it. Thread-safe; does not
/// communicate.
class PeerState {
 public:
  /// Counts a reduced backward pass that this rank begins.
  void note_pass() noexcept { passes_.fetch_add(1, std::memory_order_relaxed); }
  int64_t passes() const noexcept {
    return passes_.load(std::memory_order_relaxed);
  }

  /// Records that a rank has left. Only the first departure of a rank counts,
  /// with one exception: if a rank first left by a call (`destroyed`) and then
  /// `vanished` before it had closed its groups, it counts as vanished, because
  /// its queued work is lost.
  /// @returns true if the other ranks must be informed of the departure.
  bool add_departure(const Departure& departure);
  /// Returns the result of `add_departure` without recording anything.
  bool is_news(const Departure& departure) const;

  /// Number of ranks that have left.
  int departures() const noexcept {
    return departures_.load(std::memory_order_acquire);
  }

  /// Returns the departure of `rank`, or std::nullopt.
  std::optional<Departure> departure_of(int rank) const;

  /// Returns all departures in the order in which they were received.
  std::vector<Departure> all_departures() const;

  /// Returns the earliest departure of one of these ranks, or std::nullopt.
  std::optional<Departure> first_departure(const std::vector<int>& ranks) const;

  /// Like `first_departure`, but waits for a departure, at most `timeout`.
  std::optional<Departure> wait_for_departure(
      const std::vector<int>& ranks, std::chrono::milliseconds timeout) const;

  /// Returns the first departure other than by ddp::destroy_process_group();
  /// waits for one, at most `timeout`.
  std::optional<Departure> wait_for_failure(
      std::chrono::milliseconds timeout) const;

  /// Waits until `count` ranks have left, at most `timeout`.
  void wait_for_departures(int count, std::chrono::milliseconds timeout) const;

  /// Records that an exception has reported a departure to the program.
  void mark_told() noexcept { is_told_ = true; }
  bool is_told() const noexcept { return is_told_; }

  /// The stop vote of this rank; passes over the group of all ranks exchange
  /// it.
  StopVote& stop_vote() noexcept { return stop_vote_; }

  /// Returns "" or an error of one line. May wait for the GPU, at most
  /// `patience`.
  using Check = std::function<std::string(std::chrono::milliseconds patience)>;

  /// Registers a check that `ddp::destroy_process_group()` calls on its own
  /// thread before it closes the groups. The error of a check is thrown once
  /// the job has been left. The check must not communicate. It is skipped if a
  /// collective misses a rank that has left, because that is the error in this
  /// case. The check must own its captures, or be removed before they are
  /// destroyed.
  /// @returns the id for `remove_check`.
  size_t add_check(Check check);
  void remove_check(size_t id);
  /// Runs all checks in the order of their registration and removes them.
  /// Returns their errors, without empty ones.
  std::vector<std::string> run_checks(std::chrono::milliseconds patience);

 private:
  std::atomic<int64_t> passes_{0};
  std::atomic<int> departures_{0};
  std::atomic<bool> is_told_{false};
  StopVote stop_vote_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<Departure> order_;  // in the order of arrival
  std::map<size_t, Check> checks_;
  size_t next_check_ = 0;
};

/// Returns the `PeerState` of the job that `group` belongs to, also through
/// forwarding backends. For any other group, returns a new, empty object. Never
/// null. Too slow for the training path: keep the result.
std::shared_ptr<PeerState> peer_state_of(const c10d::Backend& group);

}  // namespace ddp::detail
