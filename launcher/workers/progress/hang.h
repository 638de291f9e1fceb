#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace launcher {

/// A worker that HangJudge finds hung.
struct HungWorker {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;  ///< process that hangs: the worker or its child
  /// Time since its last report or its start.
  std::chrono::milliseconds quiet{0};
  std::chrono::milliseconds limit{0};  ///< limit that it exceeded
  bool has_reported = false;
  std::string last_report{};  ///< for messages; may be empty
  bool is_stopped = false;    ///< stopped by a signal
};

/// Last report of a worker that does not hang.
struct RankReport {
  int rank;
  bool has_reported;
  std::string last;  ///< for messages; may be empty
};

/// Workers that hang, for the report.
struct Hang {
  std::vector<HungWorker> workers{};     ///< hung workers, at least one
  std::vector<RankReport> others{};      ///< running workers that do not hang
  std::chrono::milliseconds timeout{0};  ///< --hang-timeout
};

/// Returns "rank 1 hangs: no progress for 12.3 s (--hang-timeout is 10.0 s)",
/// or "ranks 1, 3 hang: ...".
std::string headline(const Hang& hang);

}  // namespace launcher
