#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/plan/plan.h"
#include "launcher/workers/progress/hang.h"
#include "launcher/workers/progress/hang_judge.h"
#include "launcher/workers/progress/stacks.h"

namespace launcher {

/// Reads the progress files of an attempt's workers periodically. When
/// HangJudge finds hung workers, collects their stacks for at most ten seconds,
/// calls the handler once and stops reading.
class ProgressWatch {
 public:
  using Handler = std::function<void(const Hang&)>;

  /// Creates the progress files, with this process as the supervisor. To be
  /// constructed before the workers start.
  ///
  /// @param environment of the tools that show stacks; must outlive this object
  /// @param is_held_up returns whether a worker may be blocked in a write to
  ///   ddprun; that time does not count
  /// @throws LaunchError if a file cannot be created
  ProgressWatch(EventLoop& loop,
                const LaunchPlan& plan,
                const Environment& environment,
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

  /// Returns whether the process is a tool that takes a stack.
  bool runs(pid_t pid) const;

  /// Stops and restarts the readings while the workers are stopped on purpose.
  void pause();
  void resume();

 private:
  struct Watched {
    int rank;
    int local_rank;
    std::string file;
    /// The file as ddprun created it. logind removes the files of a user who
    /// logs out, but workers still report to their files.
    Fd created;
    pid_t pid = 0;
  };

  void arm_poll();
  void poll();
  void read(size_t worker, std::chrono::steady_clock::time_point now);
  void examine(const std::vector<HangJudge::Verdict>& verdicts);
  void report_hang(const std::vector<std::string>& stacks);
  HungWorker hung_worker(const HangJudge::Verdict& verdict) const;
  std::vector<RankReport> reports_except(
      const std::vector<HungWorker>& hung) const;
  pid_t reporter(size_t worker) const;

  EventLoop& loop_;
  const Environment& environment_;
  std::function<bool()> is_held_up_;
  Handler handler_;
  std::chrono::milliseconds timeout_;
  std::vector<Watched> workers_;  // by local rank
  HangJudge judge_;
  Hang hang_;  // hang whose stacks are being collected
  std::optional<Stacks> stacks_;
};

}  // namespace launcher
