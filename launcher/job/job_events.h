#pragma once

#include <deque>
#include <functional>
#include <map>

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

  /// Turns the death of the guardian into a SignalReceived with SIGKILL.
  ///
  /// @param others_end becomes readable when the guardian has died
  void watch_for_kill(const Fd& others_end);

  Event next() override;
  std::chrono::steady_clock::time_point now() const override {
    return std::chrono::steady_clock::now();
  }
  void arm(Timer timer, std::chrono::milliseconds delay) override;
  void disarm(Timer timer) override;

 private:
  struct LastSignal {
    bool is_handed_on = false;  // by the guardian
    std::chrono::steady_clock::time_point at{};
  };

  bool is_copy(int number, bool is_handed_on);

  EventLoop& loop_;
  EventLoop::Token signal_watch_ = 0;
  EventLoop::Token kill_watch_ = 0;
  std::deque<Event> events_;
  std::map<int, LastSignal> signals_;
};

}  // namespace launcher
