#pragma once

#include <glob.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <mutex>
#include <string>
#include <thread>

#include <c10/util/Exception.h>

#include "test/support/rank_threads.h"

namespace dp::test {

/// Far longer than any wait of a test. Shorter than the time-out for ranks, so
/// that the error names the wait.
constexpr auto kPatience = ddp::test::kRankPatience / 2;

/// Returns the number of this process's threads with names that start with
/// `prefix`.
inline int count_threads(const std::string& prefix) {
  glob_t found{};
  ::glob("/proc/self/task/*/comm", 0, nullptr, &found);
  int count = 0;
  for (size_t i = 0; i < found.gl_pathc; ++i) {
    std::string name;
    std::getline(std::ifstream(found.gl_pathv[i]), name);
    count += name.rfind(prefix, 0) == 0;
  }
  ::globfree(&found);
  return count;
}

/// Returns whether the condition becomes true before kPatience is over. Polls,
/// because the kernel still lists a thread for an instant after its join.
template <typename Condition>
bool eventually(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

/// Returns whether all threads with this prefix end in time.
inline bool no_threads(const std::string& prefix) {
  return eventually([&] { return count_threads(prefix) == 0; });
}

/// Returns the future's value. Aborts the program and prints `name` if the
/// value is not ready in time, since the thread cannot be stopped; Catch2 then
/// names the test.
template <typename T>
T get_in_time(std::future<T>& future, const char* name) {
  if (future.wait_for(kPatience) != std::future_status::ready) {
    std::fprintf(stderr,
                 "%s still lasts after %lld s\n",
                 name,
                 static_cast<long long>(kPatience.count()));
    std::abort();
  }
  return future.get();
}

/// A counter that threads increment and wait for.
class Counter {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }

  /// Returns whether the count is at least `count`.
  bool has(int count) {
    const std::lock_guard lock(mutex_);
    return count_ >= count;
  }

  /// Blocks until the count is at least `count`.
  /// @throws c10::Error if kPatience is over.
  void wait_for(int count) {
    std::unique_lock lock(mutex_);
    TORCH_CHECK(
        changed_.wait_for(lock, kPatience, [&] { return count_ >= count; }),
        "Expected a count of ",
        count,
        ", but got ",
        count_,
        " when the patience was over");
  }

  /// Adds one and blocks until `size` threads have done so. Works as a barrier
  /// that can be reused.
  void meet(int size) {
    int round = 0;
    {
      const std::lock_guard lock(mutex_);
      round = count_ / size;
    }
    add();
    wait_for((round + 1) * size);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

}  // namespace dp::test
