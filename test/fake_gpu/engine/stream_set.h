#pragma once

#include <map>
#include <vector>

#include "test/fake_gpu/engine/scheduler.h"
#include "test/fake_gpu/engine/stream.h"

namespace fake_gpu {

/// All streams of the process, their queued operations and the demands for
/// them. Not thread-safe: guarded by the engine.
class StreamSet {
 public:
  explicit StreamSet(uint64_t seed) : random_(seed) {}

  /// Returns the legacy stream of a device.
  Stream* default_stream(int device);
  Stream* create(int device, Stream::Kind kind);

  /// Adds an operation, with the implicit waits of the stream: the default
  /// stream and the blocking streams of a device wait for each other.
  Point add(Stream* stream, Operation operation);
  void add_wait(Stream* stream, const Point& point);

  /// Records that a thread waits for the point.
  void demand(const Point& point);
  /// Same as demand(), for operations for which other processes wait.
  void demand_what_peers_want();

  Stream* choose_next(const Choice& choice);
  /// Returns the time of the next choice if no call comes before; max() if
  /// nothing is queued.
  Clock::time_point next_look(Clock::time_point now) const;

  /// Returns the last points of the streams of a device; -1: of all devices.
  std::vector<Point> ends_of(int device) const;

  /// Restarts the random numbers from this seed and draws new priorities.
  void reseed(uint64_t seed);

 private:
  Point append(Stream* stream, Operation operation);

  std::vector<Stream*> streams_;  // never freed, because points refer to them
  std::map<int, Stream*> default_streams_;
  Random random_;
};

}  // namespace fake_gpu
