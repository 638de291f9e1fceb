#pragma once

#include <map>
#include <vector>

#include "test/fake_gpu/engine/scheduler.h"
#include "test/fake_gpu/engine/stream.h"

namespace fake_gpu {

/// All streams of the process, what is queued in them and who waits for it.
/// Not thread-safe: the engine guards it.
class StreamSet {
 public:
  explicit StreamSet(uint64_t seed) : random_(seed) {}

  /// The legacy stream of a device.
  Stream* default_stream(int device);
  Stream* create(int device, Stream::Kind kind);

  /// Adds an operation, after what the stream implicitly waits for: the default
  /// stream and the blocking ones of a device wait for each other.
  Point add(Stream* stream, Operation operation);
  void add_wait(Stream* stream, const Point& point);

  /// Somebody waits for the point.
  void demand(const Point& point);
  /// The same for what other processes wait for.
  void demand_what_peers_want();

  Stream* choose_next(const Choice& choice);
  /// When to choose again if nothing new happens; max() with nothing queued.
  Clock::time_point next_look(Clock::time_point now) const;

  /// The last points of the streams of a device; -1: of all devices.
  std::vector<Point> ends_of(int device) const;

  /// Draws from this seed from now on, and new priorities.
  void reseed(uint64_t seed);

 private:
  Point append(Stream* stream, Operation operation);

  std::vector<Stream*> streams_;  // never freed: points name them
  std::map<int, Stream*> default_streams_;
  Random random_;
};

}  // namespace fake_gpu
