#pragma once

#include <glob.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

namespace dp::test {

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
/// after it was joined, so this looks again, for ten seconds at most.
template <typename Condition>
bool eventually(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
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

}  // namespace dp::test
