#include "launcher/event_loop.h"

#include <sys/timerfd.h>

#include <array>

namespace launcher {

EventLoop::EventLoop()
    : epoll_(check(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      timer_(
          check(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
                "timerfd_create")) {
  watch(timer_.get(), EPOLLIN, [this] {
    uint64_t expirations = 0;
    if (::read(timer_.get(), &expirations, sizeof(expirations)) > 0 &&
        on_timer_) {
      on_timer_();
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

void EventLoop::unwatch(Token token) {
  const auto found = watches_.find(token);
  if (found != watches_.end()) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.fd, nullptr);
    watches_.erase(found);
  }
}

void EventLoop::arm_timer(std::chrono::milliseconds delay) {
  itimerspec when{};
  when.it_value.tv_sec = delay.count() / 1000;
  // All zeros would disarm it.
  when.it_value.tv_nsec = (delay.count() % 1000) * 1'000'000 + 1;
  check(::timerfd_settime(timer_.get(), 0, &when, nullptr), "timerfd_settime");
}

void EventLoop::disarm_timer() {
  const itimerspec never{};
  check(::timerfd_settime(timer_.get(), 0, &never, nullptr), "timerfd_settime");
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
    // A handler may have ended this watch.
    const auto found = watches_.find(events[index].data.u64);
    if (found != watches_.end()) {
      const Handler handler = found->second.handler;  // it may end itself
      handler();
    }
  }
}

}  // namespace launcher
