#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "launcher/workers/progress/timer_table.h"

namespace launcher {

/// A worker that makes no progress, and that no other is to blame for.
struct HungWorker {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;  ///< the process that hangs: the worker, or a child of it
  std::chrono::milliseconds quiet{0};  ///< since its last report, or its start
  std::chrono::milliseconds limit{0};  ///< that it had
  bool has_reported = false;
  std::string last_report{};  ///< for people; may be empty
  bool is_stopped = false;    ///< by a signal
  std::string stack{};        ///< or what else is known; empty: nothing
  std::string advice{};       ///< how to get a stack, where none was found
};

/// What another worker has said last.
struct RankReport {
  int rank;
  bool has_reported;
  std::string last;  ///< for people; may be empty
};

/// Workers that hang.
struct Hang {
  std::string timer{};  ///< of torchrun's file timer, that has expired; else ""
  std::vector<HungWorker> workers{};     ///< at least one
  std::vector<RankReport> others{};      ///< that run
  std::chrono::milliseconds timeout{0};  ///< --hang-timeout; 0: of a timer
  int signal = SIGKILL;                  ///< that ends them
};

/// Of a worker with a timer that has expired: what the kernel tells of its
/// process is looked up.
Hang hang_of(const TimerTable::Expired& timer, int rank, int local_rank);

}  // namespace launcher
