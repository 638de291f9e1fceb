#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/workers/progress/progress_text.h"

namespace launcher {

/// State of a worker's progress file and of its process at one reading.
struct ProgressReading {
  std::string text;
  int64_t stamp = 0;        ///< time of the file's last change, in any unit
  bool is_stopped = false;  ///< the process is stopped, as by SIGSTOP
};

/// Decides from the reports of one attempt's workers which of them hang. Pure:
/// the caller passes the readings and the time.
///
/// A worker that has reported is overdue if its report has not changed for the
/// limit, or for a longer limit that the report asks for. Until its second
/// report the limit is five times as long. An overdue worker is hung unless it
/// may be waiting for another rank: its report says so (`waits=1`), or it has
/// begun more collectives than another worker.
///
/// - An overdue worker with a stopped process is hung, even if it may be
///   waiting.
/// - While one worker is not overdue, the workers that may be waiting are not
///   hung: they may be waiting for that worker, for example during a long
///   evaluation. For the limit after a worker has ended, they are not hung
///   either: it may have answered them as its last act.
/// - If all workers are overdue and all may be waiting, the workers that have
///   never reported are hung. If all have reported, the workers with the fewest
///   begun collectives are hung, which may be all of them. With ranks on other
///   hosts this takes twice the limit, because the awaited rank may be on
///   another host, and that host's ddprun then detects the hang first.
///
/// A long time without a call of judge() (for example because ddprun itself was
/// stopped) does not count.
class HangJudge {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Milliseconds = std::chrono::milliseconds;

  /// @param has_other_hosts whether ranks of the job run on other hosts, too
  HangJudge(Milliseconds limit, size_t workers, bool has_other_hosts, Time now);

  /// Sets the reading before the worker's first report.
  void expect(size_t worker, const ProgressReading& first);
  /// Records the current reading of a worker. To be called for each worker
  /// before judge().
  void record(size_t worker, const ProgressReading& reading, Time now);
  /// Records that the worker has ended.
  void forget(size_t worker, Time now);

  /// Restarts the time of all workers, after they were stopped on purpose and
  /// continued.
  void restart(Time now);

  struct Verdict {
    size_t worker;
    Milliseconds quiet;
    Milliseconds limit;
  };
  /// Returns the workers that hang; usually none.
  std::vector<Verdict> judge(Time now);

  const Progress& progress_of(size_t worker) const {
    return workers_[worker].progress;
  }
  bool has_reported(size_t worker) const {
    return workers_[worker].reports > 0;
  }
  bool is_watched(size_t worker) const { return !workers_[worker].has_ended; }
  /// Returns the recommended time between readings: a small part of the limit.
  Milliseconds interval() const;

 private:
  struct Worker {
    ProgressReading reading;
    Progress progress;
    int reports = 0;
    Time since;  // time of the last report
    bool has_ended = false;
  };

  void forgive_absence(Time now);
  Milliseconds limit_of(const Worker& worker) const;
  static Milliseconds quiet_of(const Worker& worker, Time now);
  bool is_overdue(const Worker& worker, Time now, int times = 1) const;
  bool may_wait(const Worker& worker) const;
  std::vector<const Worker*> reporters() const;
  std::vector<const Worker*> hung(Time now) const;
  std::vector<const Worker*> hung_of_waiting(
      const std::vector<const Worker*>& all) const;

  Milliseconds limit_;
  bool has_other_hosts_;
  std::vector<Worker> workers_;
  Time last_look_;
  std::optional<Time> last_end_;
};

}  // namespace launcher
