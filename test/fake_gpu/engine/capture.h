#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "test/fake_gpu/engine/stream.h"

namespace fake_gpu {

/// Adds a recorded operation to a stream again and returns its place.
using Launch = std::function<Point(Stream*)>;

/// The operations that come before a place of a capture: for each stream the
/// number of its first operations. Operations of one stream run in order.
using Past = std::map<Stream*, size_t>;

/// Returns true if everything in `past` is also in `whole`.
bool covers(const Past& whole, const Past& past);

/// A recorded operation.
struct Node {
  Stream* stream = nullptr;  // on which it was recorded
  Past past;
  Launch launch;
};

/// The operations of a capture, each after all operations of its past.
using Graph = std::vector<Node>;

/// A capture between cudaStreamBeginCapture and cudaStreamEndCapture. Plain
/// data, guarded by Captures.
class Capture {
 public:
  Capture(uint64_t id, Stream* origin, cudaStreamCaptureMode mode)
      : id(id), origin(origin), mode(mode), streams_{{origin, {}}} {}

  const uint64_t id;
  Stream* const origin;
  const cudaStreamCaptureMode mode;
  const std::thread::id thread = std::this_thread::get_id();
  bool invalid = false;  // an error of the program; only the end is allowed

  bool contains(Stream* stream) const { return streams_.count(stream) > 0; }
  bool contains(int device, Stream::Kind kind) const;
  bool contains(int device) const;

  void add(Stream* stream, Launch launch);
  /// Returns the past of the stream's next operation.
  const Past& past_of(Stream* stream) const { return streams_.at(stream); }
  /// Makes the stream's next operation come after `past`. The stream becomes a
  /// part of the capture.
  void wait(Stream* stream, const Past& past);

  /// Returns true if the origin has waited for all operations.
  bool is_joined() const;
  Graph take_graph() { return std::move(graph_); }

 private:
  std::map<Stream*, Past> streams_;
  Graph graph_;
};

}  // namespace fake_gpu
