#pragma once

#include <deque>
#include <functional>

#include "launcher/base/event_loop.h"
#include "launcher/job/supervisor.h"
#include "launcher/machine/signals.h"

namespace launcher {

/// Delivers a job's events from the event loop.
class JobEvents : public EventSource {
 public:
  explicit JobEvents(EventLoop& loop) : loop_(loop) {}
  ~JobEvents() override;
  JobEvents(const JobEvents&) = delete;
  JobEvents& operator=(const JobEvents&) = delete;

  /// Appends an event to the queue.
  void post(const Event& event);

  /// Turns signals into events. For SIGCHLD, calls `on_child` instead.
  void watch(const SignalScope& signals, std::function<void()> on_child);

  /// After a SIGTSTP that it has returned, stops this process as Ctrl-Z does.
  Event next() override;
  std::chrono::steady_clock::time_point now() const override {
    return std::chrono::steady_clock::now();
  }
  void arm(Timer timer, std::chrono::milliseconds delay) override;
  void disarm(Timer timer) override;

 private:
  EventLoop& loop_;
  EventLoop::Token signal_watch_ = 0;
  std::deque<Event> events_;
  bool has_to_stop_ = false;
};

}  // namespace launcher
