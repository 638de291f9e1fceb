#pragma once

#include <chrono>

namespace launcher {

/// --on-preempt: a signal that says that the machine will be taken from the
/// job.
struct Preemption {
  int signal = 0;
  /// That the workers have to save and to end, before SIGTERM.
  std::chrono::milliseconds time{30'000};
};

}  // namespace launcher
