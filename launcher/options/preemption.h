#pragma once

#include <chrono>

namespace launcher {

/// --on-preempt: a signal that announces that the machine will be taken from
/// the job.
struct Preemption {
  int signal = 0;
  /// Time for the workers to save and exit, before SIGTERM.
  std::chrono::milliseconds time{30'000};
};

}  // namespace launcher
