#include "launcher/job/job_events.h"

#include <unistd.h>

#include <csignal>
#include <string>
#include <utility>

namespace launcher {
namespace {

std::string name_of(Timer timer) {
  switch (timer) {
    case Timer::grace:
      return "grace";
    case Timer::kill:
      return "kill";
    case Timer::preempt:
      return "preempt";
    case Timer::drain:
      break;
  }
  return "drain";
}

}  // namespace

JobEvents::~JobEvents() {
  loop_.unwatch(signal_watch_);
  loop_.unwatch(kill_watch_);
}

void JobEvents::post(const Event& event) {
  events_.push_back(event);
}

void JobEvents::watch(const SignalScope& signals,
                      std::function<void()> on_child) {
  signal_watch_ = loop_.watch(
      signals.fd(), EPOLLIN, [this, &signals, on_child = std::move(on_child)] {
        bool has_child_ended = false;
        signals.read([&](int number, pid_t sender) {
          if (number == SIGCHLD) {
            has_child_ended = true;
          } else if (!is_copy(number, sender == ::getppid())) {
            post(SignalReceived{number});
          }
        });
        if (has_child_ended) {
          on_child();
        }
      });
}

/// Returns whether a signal is a duplicate: a signal to all processes of a
/// cgroup reaches this process directly and, forwarded, from the guardian.
bool JobEvents::is_copy(int number, bool is_handed_on) {
  constexpr std::chrono::seconds kOfOneSender{3};
  const auto [last, is_first] = signals_.try_emplace(number);
  if (!is_first && last->second.is_handed_on != is_handed_on &&
      now() - last->second.at < kOfOneSender) {
    signals_.erase(last);
    return true;
  }
  last->second = {is_handed_on, now()};
  return false;
}

void JobEvents::watch_for_kill(const Fd& others_end) {
  kill_watch_ = loop_.watch(others_end.get(), EPOLLIN, [this] {
    loop_.unwatch(std::exchange(kill_watch_, 0));
    post(SignalReceived{SIGKILL});
  });
}

Event JobEvents::next() {
  while (events_.empty()) {
    loop_.run_once();
  }
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void JobEvents::arm(Timer timer, std::chrono::milliseconds delay) {
  loop_.arm_timer(
      name_of(timer), delay, [this, timer] { post(TimerFired{timer}); });
}

void JobEvents::disarm(Timer timer) {
  loop_.disarm_timer(name_of(timer));
}

}  // namespace launcher
