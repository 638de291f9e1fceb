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

/// True once there is none of them any more. The kernel lists a thread for an
/// instant after it was joined, so this looks again, for ten seconds at most.
inline bool no_threads(const std::string& prefix) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (count_threads(prefix) > 0) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

}  // namespace dp::test
