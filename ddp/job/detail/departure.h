#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace ddp::detail {

/// How a rank has left its job.
struct Departure {
  enum class How {
    destroyed,  ///< by ddp::destroy_process_group()
    threw,      ///< because of an exception
    vanished    ///< its process has ended, and nobody knows why
  };

  int rank = 0;  ///< of the world
  How how = How::destroyed;
  /// Backward passes that it has begun; -1 of a rank that has vanished.
  int64_t passes = -1;
  /// What it threw, one line; may be empty.
  std::string text;
  /// By group: the collectives that it has started. Without an entry: unknown.
  std::map<std::string, uint64_t> started;
  /// It has closed its groups, and rank 0 the store. Not in a line.
  bool has_closed = false;
};

/// Pure: a departure as one line without its end, for other ranks. A long text
/// is cut.
std::string to_line(const Departure& departure);

/// Pure: nothing when the line is none.
std::optional<Departure> departure_of_line(const std::string& line);

/// Pure: whether a rank that has left so does not take part in the `number`th
/// collective of a group, counted from 1.
bool misses_collective(const Departure& departure,
                       const std::string& group,
                       uint64_t number);

/// Pure: whether a rank that has left so had started more than `number`
/// collectives of a group.
bool started_more(const Departure& departure,
                  const std::string& group,
                  uint64_t number);

/// Pure: "rank 1 has left by ddp::destroy_process_group() after 37 backward
/// passes; this rank has begun 38". `passes` are this rank's own.
std::string describe(const Departure& departure, int64_t passes);

}  // namespace ddp::detail
