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

/// Far longer than anything that a test waits for. Ends before the patience
/// with the ranks does, and so with an error that says where.
constexpr auto kPatience = ddp::test::kRankPatience / 2;

/// Threads of this process whose name begins like this.
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

/// All but those of LibTorch's that last as long as the process.
inline int count_own_threads() {
  return count_threads("") - count_threads("pt_autograd");
}

/// True once the condition holds. The kernel lists a thread for an instant
/// after it was joined, so this looks again, until the patience is over.
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

/// True once there are no threads with such a name any more.
inline bool no_threads(const std::string& prefix) {
  return eventually([&] { return count_threads(prefix) == 0; });
}

/// What the future gives. One that is not ready in time ends the program with
/// what was waited for, since its thread cannot be stopped; Catch2 then names
/// the test.
template <typename T>
T get_in_time(std::future<T>& future, const char* what) {
  if (future.wait_for(kPatience) != std::future_status::ready) {
    std::fprintf(stderr,
                 "%s still lasts after %lld s\n",
                 what,
                 static_cast<long long>(kPatience.count()));
    std::abort();
  }
  return future.get();
}

/// A number that threads add to and wait for.
class Counter {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }

  /// True once the count is at least that.
  bool has(int count) {
    const std::lock_guard lock(mutex_);
    return count_ >= count;
  }

  /// Waits until the count is at least that.
  /// @throws c10::Error when it is not in time.
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

  /// Adds one and waits until `size` threads have, the first time, the second
  /// time, and so on.
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
