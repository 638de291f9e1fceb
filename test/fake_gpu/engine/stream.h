#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

namespace fake_gpu {

using Clock = std::chrono::steady_clock;
struct Stream;

/// A place in a stream, reached when its `number`th operation has run.
struct Point {
  Stream* stream = nullptr;
  uint64_t number = 0;
};

/// The work of an operation. It never blocks: false means "not yet, call me
/// again".
using Step = std::function<bool()>;

/// What a stream holds: work, or a wait for a point of another stream.
struct Operation {
  std::string label;
  Step step;    // empty: nothing to do
  Point after;  // with a stream: does not start before that point
  std::function<bool()> wanted;  // somebody outside the process waits for it
};

/// A queue whose operations run in order. Plain data: the engine guards it.
struct Stream {
  enum class Kind {
    legacy,  // the default stream: waits for the blocking ones of its
             // device and they for it
    blocking,
    non_blocking
  };

  int id = 0;
  int device = 0;
  Kind kind = Kind::non_blocking;

  std::deque<Operation> queue;
  uint64_t queued = 0;    // operations ever added
  uint64_t done = 0;      // operations that have run
  uint64_t demanded = 0;  // somebody waits until so many have run

  uint64_t priority = 0;
  int refusals = 0;           // "not yet" of the first operation
  Clock::time_point resting;  // it said so: not asked again before
  int fruitless_queries = 0;  // of the host, since something has run

  Point last() { return {this, queued}; }
  bool reached(uint64_t number) const { return done >= number; }
};

/// "stream 3 #17"
inline std::string name_of(const Point& point) {
  return "stream " + std::to_string(point.stream->id) + " #" +
         std::to_string(point.number);
}

inline bool reached(const Point& point) {
  return point.stream == nullptr || point.stream->reached(point.number);
}

}  // namespace fake_gpu
