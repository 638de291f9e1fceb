#pragma once

#include <list>

#include "launcher/base/event_loop.h"
#include "launcher/workers/output/worker_stream.h"

namespace launcher {

/// The streams of all workers of one attempt: reads them when they have
/// something, and stops reading while what they go to is congested.
class WorkerOutput {
 public:
  explicit WorkerOutput(EventLoop& loop);
  ~WorkerOutput();
  WorkerOutput(const WorkerOutput&) = delete;
  WorkerOutput& operator=(const WorkerOutput&) = delete;

  /// Starts to read a stream. The reference stays valid.
  const WorkerStream& add(Fd pipe, StreamTargets targets);

  /// No worker is left: passes on what is still in the pipes and closes them.
  void finish();

  /// A worker may wait in a write for somebody to read.
  bool is_held_up() const;

 private:
  struct Source {
    WorkerStream stream;
    EventLoop::Token token = 0;  // 0: paused or at its end
    bool has_ended = false;
  };

  void resume();
  void start(Source& source);
  void read(Source& source);
  void stop(Source& source);

  EventLoop& loop_;
  EventLoop::Token rounds_;
  std::list<Source> sources_;
};

}  // namespace launcher
