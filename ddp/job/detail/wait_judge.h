#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

// Finds the waits of a job's ranks that can never end. Pure: rank 0 calls it
// with the reports that it has got over the control channel.
namespace ddp::detail {

/// The name of the group of all ranks.
inline constexpr const char* kWorldGroup = "world";

/// A wait of one rank for a collective.
struct WaitReport {
  std::string group;
  std::string members;  ///< `member_ranges` of the group's world ranks
  /// Of the collective, counted from 1 per group; 0: the group is being made.
  uint64_t number = 0;
  std::string call;       ///< operation and size: "allreduce of 64 Float"
  std::string operation;  ///< "all-reduce of gradient bucket 1 of pass 4"
};

/// How far a rank has come in one of its open groups.
struct GroupProgress {
  std::string group;
  uint64_t started = 0;  ///< number of the last collective started
  /// Index in `RankReport::waits` of the wait that keeps the rank from starting
  /// the next collective; -1: none, as the rank computes.
  int blocked_by = -1;
  /// `WaitReport::call` of the last collectives, up to `started`; empty if the
  /// rank waits for none of the group.
  std::vector<std::string> calls = {};
};

/// The state of a rank at one moment.
struct RankReport {
  bool leaves = false;  ///< it waits in ddp::destroy_process_group()
  /// A wait has lasted for some seconds. Not part of the text form.
  bool waits_long = false;
  std::vector<WaitReport> waits;
  std::vector<GroupProgress> groups;
};

/// Pure: ranks as ranges, "0-3,7-7", and back.
std::string member_ranges(const std::vector<int>& ranks);
std::vector<int> parse_member_ranges(const std::string& text);

/// Pure: the report as one line of text, and back. `parse_rank_report` returns
/// std::nullopt for any other text.
std::string to_text(const RankReport& report);
std::optional<RankReport> parse_rank_report(const std::string& text);

/// Waits that never end.
struct DeadWaits {
  std::string error;                ///< names the ranks and their calls
  std::vector<std::string> groups;  ///< that contain these waits
};

/// Pure: returns the waits that can never end, or std::nullopt.
///
/// - A wait for a collective is an error if another member has started, or
///   waits for, the collective with the same number by a different call.
/// - Any other wait is dead if a member has not started the collective, and
///   itself either leaves or is blocked by a dead wait.
/// - A member that has not made a group is expected to make it on the thread
///   that uses the group of all ranks.
/// - A collective that a leaving member will not start, but another member has
///   started, is dead, too, even if no rank waits for it.
///
/// A member computes if it has sent no report, or a report without a wait: it
/// makes no wait dead. A collective that all members have started is
/// running. Reports may be of different times: a rank that waits starts nothing
/// until its wait is over, so a report that is out of date makes no wait dead.
std::optional<DeadWaits> find_dead_waits(
    const std::map<int, RankReport>& reports);

}  // namespace ddp::detail
