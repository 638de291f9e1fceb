#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace ddp::detail {

/// Time limit for the report of a departure, which may come after its effects:
/// broken connections, sums of gradients.
inline constexpr std::chrono::milliseconds kNewsPatience{2'000};

/// How and when a rank has left its job.
struct Departure {
  enum class How {
    destroyed,  ///< by ddp::destroy_process_group()
    threw,      ///< because of an exception
    vanished    ///< its process ended without a reported reason
  };

  int rank = 0;  ///< rank in the world
  How how = How::destroyed;
  /// Backward passes that the rank has begun; -1 if it vanished.
  int64_t passes = -1;
  /// Text of its exception, one line; may be empty.
  std::string text;
  /// Number of started collectives by group name. No entry: unknown.
  std::map<std::string, uint64_t> started;
  /// True once the rank has closed its groups, and on rank 0 also the store.
  /// Not part of the text form.
  bool has_closed = false;
};

/// Pure: the departure as one line for the other ranks, without the line end. A
/// text of more than 1000 characters is cut.
std::string to_line(const Departure& departure);

/// Pure: parses `to_line`; returns std::nullopt for any other text.
std::optional<Departure> departure_of_line(const std::string& line);

/// Pure: returns true if a rank with this departure will not take part in the
/// `number`th collective of the group (counted from 1), or if its count is
/// unknown.
bool misses_collective(const Departure& departure,
                       const std::string& group,
                       uint64_t number);

/// Pure: returns true if a rank with this departure is known to have started
/// more than `number` collectives of the group.
bool started_more(const Departure& departure,
                  const std::string& group,
                  uint64_t number);

/// Pure: "rank 1 has left by ddp::destroy_process_group() after 37 backward
/// passes; this rank has begun 38". `passes` counts the passes of this rank.
std::string describe(const Departure& departure, int64_t passes);

}  // namespace ddp::detail
