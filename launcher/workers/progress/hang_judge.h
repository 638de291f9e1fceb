#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddp/base/job_files/progress_text.h"

namespace launcher {

/// What was seen of a worker's progress file, and of its process.
struct ProgressReading {
  std::string text;
  int64_t stamp = 0;        ///< of its last change, whatever the unit
  bool is_stopped = false;  ///< the process is, by SIGSTOP or the like
};

/// Says from the reports of one attempt's workers which of them hang. Pure: it
/// is told what was read, and when.
///
/// A worker is overdue when its report has not changed for the limit, or for
/// the longer one that the report asks for. Who is overdue hangs, except who
/// may wait for somebody else: its report says so (`waits=1`), or it has begun
/// more collectives than another worker.
///
/// - A stopped process that is overdue hangs, whatever it waits for.
/// - As long as one worker is not overdue, those that may wait are let: it may
///   be the one that they wait for, in a long evaluation.
/// - When all are overdue and all may wait, those hang that have never
///   reported; else those that have begun the fewest collectives; where these
///   are all, all hang. With ranks on other hosts, who may be those that are
///   waited for and whose own ddprun sees it first, this takes twice the limit.
///
/// A long time in which nobody has looked (ddprun was stopped, too) does not
/// count.
class HangJudge {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Milliseconds = std::chrono::milliseconds;

  /// @param has_other_hosts  ranks of the job run elsewhere, too
  HangJudge(Milliseconds limit, size_t workers, bool has_other_hosts, Time now);

  /// What is there before a worker has reported.
  void expect(size_t worker, const ProgressReading& first);
  /// What has been read now. To be called for each worker, then judge().
  void note(size_t worker, const ProgressReading& reading, Time now);
  /// The worker has ended.
  void forget(size_t worker);

  /// The workers were stopped on purpose, and run again: all have their whole
  /// time.
  void start_anew(Time now);

  struct Verdict {
    size_t worker;
    Milliseconds quiet;
    Milliseconds limit;
  };
  /// Who hangs; mostly nobody.
  std::vector<Verdict> judge(Time now);

  const ddp::detail::Progress& progress_of(size_t worker) const {
    return workers_[worker].progress;
  }
  bool has_reported(size_t worker) const {
    return workers_[worker].reports > 0;
  }
  bool is_watched(size_t worker) const { return !workers_[worker].has_ended; }
  /// Since its last report, or since it was started.
  Milliseconds quiet_of(size_t worker, Time now) const {
    return quiet_of(workers_[worker], now);
  }

  /// How often to look: a small part of the limit.
  Milliseconds interval() const;

 private:
  struct Worker {
    ProgressReading reading;
    ddp::detail::Progress progress;
    int reports = 0;
    Time since;  // of the last report
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
};

}  // namespace launcher
