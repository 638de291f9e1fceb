#pragma once

#include <chrono>
#include <mutex>
#include <thread>

namespace ddp::detail {

/// Takes a lock that another thread may never give back, as it has ended the
/// process while it held it; waits for it one second at most. Not for a step.
/// (ThreadSanitizer does not see what std::timed_mutex does.)
inline std::unique_lock<std::mutex> lock_within_a_second(std::mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  for (int i = 0; !lock && i < 1'000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.try_lock();
  }
  return lock;
}

}  // namespace ddp::detail
