#pragma once

#include <cstdio>
#include <cstdlib>

// Functions shared by the child programs of the launcher's tests.
inline int rank() {
  return std::atoi(std::getenv("RANK"));
}

inline int attempt() {
  return std::atoi(std::getenv("TORCHELASTIC_RESTART_COUNT"));
}

/// Prints one line to stdout and flushes.
inline void say(const char* text) {
  std::printf("%s\n", text);
  std::fflush(stdout);
}
