#pragma once

#include <cstdio>
#include <cstdlib>

// What the child programs of the launcher's tests share.
inline int rank() {
  return std::atoi(std::getenv("RANK"));
}

inline int attempt() {
  return std::atoi(std::getenv("TORCHELASTIC_RESTART_COUNT"));
}

/// One line on stdout, at once.
inline void say(const char* text) {
  std::printf("%s\n", text);
  std::fflush(stdout);
}
