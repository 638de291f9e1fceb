#pragma once

#include <chrono>
#include <mutex>
#include <thread>
#include <tuple>

namespace ddp::detail {

/// Locks `mutex` within one second; the returned lock is empty on failure. Used
/// at exit, where a terminated thread may still hold the mutex. Do not use on
/// the training path. Polls, because ThreadSanitizer does not support
/// std::timed_mutex.
inline std::unique_lock<std::mutex> lock_within_a_second(std::mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  for (int i = 0; !lock && i < 1'000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::ignore = lock.try_lock();
  }
  return lock;
}

}  // namespace ddp::detail
