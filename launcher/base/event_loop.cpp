#include "launcher/base/event_loop.h"

#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <utility>

namespace launcher {

EventLoop::EventLoop()
    : epoll_(check(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      alarm_(
          check(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
                "timerfd_create")) {
  watch(alarm_.get(), EPOLLIN, [this] {
    uint64_t expirations = 0;
    if (::read(alarm_.get(), &expirations, sizeof(expirations)) > 0) {
      timers_.run_due(Timers::Clock::now());
      set_alarm();
    }
  });
}

EventLoop::Token EventLoop::watch(int fd, uint32_t events, Handler handler) {
  const Token token = ++last_token_;
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  check(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
  watches_.emplace(token, Watch{fd, std::move(handler)});
  return token;
}

EventLoop::Token EventLoop::watch_rounds(Handler handler) {
  const Token token = ++last_token_;
  round_handlers_.emplace(token, std::move(handler));
  return token;
}

void EventLoop::unwatch(Token token) {
  const auto found = watches_.find(token);
  if (found != watches_.end()) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.fd, nullptr);
    watches_.erase(found);
  }
  round_handlers_.erase(token);
}

void EventLoop::arm_timer(const std::string& name,
                          std::chrono::milliseconds delay,
                          Handler handler) {
  arm_timer_at(name, Timers::Clock::now() + delay, std::move(handler));
}

void EventLoop::arm_timer_at(const std::string& name,
                             std::optional<Timers::Time> deadline,
                             Handler handler) {
  if (!deadline) {
    disarm_timer(name);
    return;
  }
  const auto now = Timers::Clock::now();
  timers_.arm(name, std::max(*deadline, now), std::move(handler));
  set_alarm();
}

void EventLoop::disarm_timer(const std::string& name) {
  timers_.disarm(name);
  set_alarm();
}

void EventLoop::set_alarm() {
  using namespace std::chrono;
  itimerspec when{};  // all zeros: never
  if (const auto deadline = timers_.next_deadline()) {
    const auto time = deadline->time_since_epoch();  // of CLOCK_MONOTONIC
    when.it_value.tv_sec = duration_cast<seconds>(time).count();
    when.it_value.tv_nsec = (time % seconds(1)) / nanoseconds(1);
  }
  check(::timerfd_settime(alarm_.get(), TFD_TIMER_ABSTIME, &when, nullptr),
        "timerfd_settime");
}

void EventLoop::run_once() {
  std::array<epoll_event, 64> events;
  const int count = check(
      retry_interrupted([&] {
        return ::epoll_wait(
            epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
      }),
      "epoll_wait");
  for (int index = 0; index < count; ++index) {
    const Token token =
        events[index].data.u64;  // a copy: epoll_event is packed
    // An earlier handler may have ended this watch.
    const auto found = watches_.find(token);
    if (found != watches_.end()) {
      // A copy: the handler may end its own watch.
      const Handler handler = found->second.handler;
      handler();
    }
  }
  for (auto next = round_handlers_.begin(); next != round_handlers_.end();) {
    const Handler handler = next->second;
    const Token token = next->first;
    handler();
    next = round_handlers_.upper_bound(token);  // the handler may end any watch
  }
}

}  // namespace launcher
