#pragma once

#include <list>

#include "launcher/base/event_loop.h"
#include "launcher/workers/output/worker_stream.h"

namespace launcher {

/// Reads the streams of all workers of one attempt as data arrives. Pauses a
/// stream while its console or log file is congested. Shows a line that does
/// not end (a prompt, a progress bar) within a second.
class WorkerOutput {
 public:
  explicit WorkerOutput(EventLoop& loop);
  ~WorkerOutput();
  WorkerOutput(const WorkerOutput&) = delete;
  WorkerOutput& operator=(const WorkerOutput&) = delete;

  /// Starts reading a stream. The reference stays valid for this object's
  /// lifetime.
  const WorkerStream& add(Fd pipe, StreamTargets targets);

  /// Forwards the data that is still in the pipes and closes them. To be called
  /// when no worker is left.
  void finish();

  /// Returns whether a stream is paused, so that a worker may block in a write.
  bool is_held_up() const;

 private:
  struct Source {
    WorkerStream stream;
    EventLoop::Token token = 0;  // 0: paused or ended
    bool has_ended = false;
  };

  void resume();
  void start(Source& source);
  void read(Source& source);
  void stop(Source& source);
  void await_line_ends();
  void show_unfinished();

  EventLoop& loop_;
  EventLoop::Token rounds_;
  std::list<Source> sources_;
  bool awaits_line_ends_ = false;  // a timer is armed
};

}  // namespace launcher
