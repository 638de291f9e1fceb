#include "launcher/job/job_events.h"

#include <csignal>
#include <utility>

namespace launcher {

JobEvents::~JobEvents() {
  loop_.unwatch(signal_watch_);
}

void JobEvents::post(const Event& event) {
  events_.push_back(event);
}

void JobEvents::watch(const SignalScope& signals,
                      std::function<void()> on_child) {
  signal_watch_ = loop_.watch(
      signals.fd(), EPOLLIN, [this, &signals, on_child = std::move(on_child)] {
        bool has_child_ended = false;
        signals.read([&](int number) {
          if (number == SIGCHLD) {
            has_child_ended = true;
          } else {
            post(SignalReceived{number});
          }
        });
        if (has_child_ended) {
          on_child();
        }
      });
}

Event JobEvents::next() {
  // The caller has stopped the workers by now.
  if (std::exchange(has_to_stop_, false)) {
    stop_as_by_keyboard();
  }
  while (events_.empty()) {
    loop_.run_once();
  }
  Event event = std::move(events_.front());
  events_.pop_front();
  const auto* signal = std::get_if<SignalReceived>(&event);
  has_to_stop_ = signal != nullptr && signal->number == SIGTSTP;
  return event;
}

void JobEvents::arm(Timer timer, std::chrono::milliseconds delay) {
  loop_.arm_timer(
      text_of(timer), delay, [this, timer] { post(TimerFired{timer}); });
}

void JobEvents::disarm(Timer timer) {
  loop_.disarm_timer(text_of(timer));
}

}  // namespace launcher
