#pragma once

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>

#include <c10/util/Exception.h>

namespace ddp::test {

/// Sends this process a signal after some time, wherever it is then.
inline void signal_later(int number, std::chrono::microseconds time) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = number;
  timer_t timer = nullptr;
  TORCH_CHECK(::timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
  const itimerspec when{{0, 0},
                        {static_cast<time_t>(time.count() / 1'000'000),
                         static_cast<long>(time.count() % 1'000'000 * 1000)}};
  TORCH_CHECK(::timer_settime(timer, 0, &when, nullptr) == 0);
}

/// Number of kills; DDP_KILLS sets it.
inline int kills() {
  const char* text = std::getenv("DDP_KILLS");
  return text == nullptr ? 6 : std::atoi(text);
}

}  // namespace ddp::test
