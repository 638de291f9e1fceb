#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Time limit for the report of a departure, which may come after its effects:
/// broken connections, sums of gradients.
inline constexpr std::chrono::milliseconds kNewsPatience{2'000};

/// How and when a rank has left its job, or one group, before the others.
struct Departure {
  enum class How {
    left,   ///< ddp::destroy_process_group() did not wait longer
    threw,  ///< because of an exception
    ended   ///< its process ended without a reported reason
  };

  int rank = 0;  ///< rank in the world
  How how = How::left;
  /// Backward passes that the rank has begun; -1: unknown.
  int64_t passes = -1;
  /// Text of its exception, one line; may be empty.
  std::string text;
  /// Name of the one group that the rank has left, because of an exception;
  /// empty: all groups.
  std::string group = "";
};

/// Pure: "rank 1 has left because of an exception after 37 backward passes;
/// this rank has begun 38". `passes` counts the passes of this rank. The text
/// says nothing of passes if neither rank has begun one.
std::string describe(const Departure& departure, int64_t passes);

/// Agreement of a job's ranks on the pass after which they stop. Each rank that
/// knows of the stop request votes for it in its passes. A rank that receives
/// a vote votes, too. The ranks stop after the first pass in which all
/// have voted. Thread-safe.
class StopVote {
 public:
  /// From now on this rank votes to stop.
  void vote_to_stop() noexcept { votes_to_stop_ = true; }
  bool votes_to_stop() const noexcept { return votes_to_stop_; }

  /// Records the result of a pass: whether any rank and whether all have voted.
  void record(bool any, bool all) noexcept {
    if (any) {
      votes_to_stop_ = true;
    }
    if (all) {
      is_agreed_ = true;
    }
  }
  bool is_agreed() const noexcept { return is_agreed_; }

 private:
  std::atomic<bool> votes_to_stop_{false};
  std::atomic<bool> is_agreed_{false};
};

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

  /// Records that a rank has left. Only the first departure of a rank, and the
  /// first one from a group, count.
  void add_departure(const Departure& departure);

  /// Number of ranks that have left.
  int departures() const noexcept {
    return departures_.load(std::memory_order_acquire);
  }

  /// Returns the departure of `rank` from the job, or std::nullopt.
  std::optional<Departure> departure_of(int rank) const;

  /// Returns the earliest departure of one of these ranks from the job, or of
  /// any rank from `group`, or std::nullopt; waits for one, at most `timeout`.
  std::optional<Departure> first_departure(
      const std::vector<int>& ranks,
      std::chrono::milliseconds timeout = std::chrono::milliseconds(0),
      const std::string& group = "") const;

  /// Records that an exception has reported a departure to the program.
  void mark_reported() noexcept { is_reported_ = true; }
  bool is_reported() const noexcept { return is_reported_; }

  /// The stop vote of this rank; passes over the group of all ranks exchange
  /// it.
  StopVote& stop_vote() noexcept { return stop_vote_; }

 private:
  std::atomic<int64_t> passes_{0};
  std::atomic<int> departures_{0};
  std::atomic<bool> is_reported_{false};
  StopVote stop_vote_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<Departure> order_;            // in the order of arrival
  std::map<int, size_t> of_rank_;           // index in order_
  std::map<std::string, size_t> of_group_;  // as above
};

/// Returns the `PeerState` of the job that `group` belongs to. For any other
/// group, returns a new, empty object. Never null. Too slow for the training
/// path: keep the result.
std::shared_ptr<PeerState> peer_state_of(const c10d::Backend& group);

}  // namespace ddp::detail
