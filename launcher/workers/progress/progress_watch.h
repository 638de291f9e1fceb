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
#include "launcher/workers/progress/worker_state.h"

namespace launcher {

/// Reads the progress files of an attempt's workers from time to time, and
/// tells when the HangJudge finds that some of them hang; once, with what can
/// be found out in ten seconds of where they are, and then looks no more.
class ProgressWatch {
 public:
  using Handler = std::function<void(const Hang&)>;

  /// Makes the files, empty: to be called before the workers are started.
  ///
  /// @param is_held_up tells whether a worker may wait in a write for somebody
  ///   to read it: that time does not count
  /// @throws LaunchError when they cannot be made
  ProgressWatch(EventLoop& loop,
                const LaunchPlan& plan,
                std::function<bool()> is_held_up,
                Handler handler);
  /// Removes the files.
  ~ProgressWatch();
  ProgressWatch(const ProgressWatch&) = delete;
  ProgressWatch& operator=(const ProgressWatch&) = delete;

  /// A worker was started.
  void watch(int local_rank, pid_t pid);
  /// It has ended.
  void forget(int local_rank);

  /// What a worker has reported by now.
  WorkerState::Progress progress_of(int local_rank);

  /// The workers are stopped on purpose, or run again.
  void pause();
  void resume();

 private:
  struct Watched {
    int rank;
    int local_rank;
    std::string file;
    pid_t pid = 0;
  };

  void look_later();
  void look();
  void read(size_t worker, std::chrono::steady_clock::time_point now);
  void examine(const std::vector<HangJudge::Verdict>& verdicts);
  void tell(const std::vector<std::string>& stacks);
  HungWorker hung_worker(const HangJudge::Verdict& verdict) const;
  std::vector<RankReport> others_than(
      const std::vector<HungWorker>& hung) const;
  pid_t reporter(size_t worker) const;

  EventLoop& loop_;
  std::function<bool()> is_held_up_;
  Handler handler_;
  std::chrono::milliseconds timeout_;
  std::vector<Watched> workers_;  // by local rank
  HangJudge judge_;
  Hang hang_;  // while its stacks are looked at
  std::optional<Stacks> stacks_;
};

}  // namespace launcher
