#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

namespace fake_gpu {

using Clock = std::chrono::steady_clock;
struct Stream;

/// A place in a stream, reached when the stream's `number`th operation has run.
struct Point {
  Stream* stream = nullptr;
  uint64_t number = 0;
};

/// The work of an operation. It must not block: it returns false if it must be
/// called again later.
using Step = std::function<bool()>;

/// An entry of a stream: work, or a wait for a point of another stream.
struct Operation {
  std::string label;
  Step step;                     // empty: no work
  Point after;                   // if it has a stream: starts after that point
  std::function<bool()> wanted;  // true: another process waits for it
};

/// A queue whose operations run in order. Plain data, guarded by the engine.
struct Stream {
  enum class Kind {
    // Default stream: it and its device's blocking streams wait for each other.
    legacy,
    blocking,
    non_blocking
  };

  int id = 0;
  int device = 0;
  Kind kind = Kind::non_blocking;

  std::deque<Operation> queue;
  uint64_t queued = 0;    // operations added in total
  uint64_t done = 0;      // operations that have run
  uint64_t demanded = 0;  // operations that a wait requires

  uint64_t priority = 0;
  int refusals = 0;           // failed attempts of the first operation
  Clock::time_point resting;  // time of its next attempt
  int fruitless_queries = 0;  // by the host, since the last operation

  Point last() { return {this, queued}; }
  bool reached(uint64_t number) const { return done >= number; }
};

/// Returns, for example, "stream 3 #17".
inline std::string name_of(const Point& point) {
  return "stream " + std::to_string(point.stream->id) + " #" +
         std::to_string(point.number);
}

inline bool reached(const Point& point) {
  return point.stream == nullptr || point.stream->reached(point.number);
}

}  // namespace fake_gpu
