#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/plan/plan.h"
#include "launcher/workers/progress/hang.h"
#include "launcher/workers/progress/hang_judge.h"

namespace launcher {

/// Reads the progress files of an attempt's workers periodically. When
/// HangJudge finds hung workers, calls the handler and stops reading.
class ProgressWatch {
 public:
  using Handler = std::function<void(const Hang&)>;

  /// Creates the progress files. To be constructed before the workers start.
  ///
  /// @param is_held_up returns whether a worker may be blocked in a write to
  ///   ddprun; that time does not count
  /// @throws LaunchError if a file cannot be created
  ProgressWatch(EventLoop& loop,
                const LaunchPlan& plan,
                std::function<bool()> is_held_up,
                Handler handler);
  /// Removes the files.
  ~ProgressWatch();
  ProgressWatch(const ProgressWatch&) = delete;
  ProgressWatch& operator=(const ProgressWatch&) = delete;

  /// Sets the process id of a started worker.
  void watch(int local_rank, pid_t pid);
  /// Records that a worker has ended.
  void forget(int local_rank);

  /// Stops and restarts the readings while the workers are stopped on purpose.
  void pause();
  void resume();

 private:
  struct Watched {
    int rank;
    int local_rank;
    std::string file;
    /// The file as ddprun created it. logind removes the files of a user at
    /// log-out, but workers still report to their files.
    Fd created;
    pid_t pid = 0;
  };

  void arm_poll();
  void poll();
  void read(size_t worker, std::chrono::steady_clock::time_point now);
  Hang hang_of(const std::vector<HangJudge::Verdict>& verdicts) const;
  HungWorker hung_worker(const HangJudge::Verdict& verdict) const;
  std::vector<RankReport> reports_except(
      const std::vector<HungWorker>& hung) const;
  pid_t reporter(size_t worker) const;

  EventLoop& loop_;
  std::function<bool()> is_held_up_;
  Handler handler_;
  std::chrono::milliseconds timeout_;
  std::vector<Watched> workers_;  // by local rank
  HangJudge judge_;
};

}  // namespace launcher
