#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "launcher/event_loop.h"
#include "launcher/output/consoles.h"
#include "launcher/output/log.h"
#include "launcher/output/run_directory.h"
#include "launcher/policy.h"
#include "launcher/process/job_cgroup.h"
#include "launcher/process/signals.h"
#include "launcher/process/workers.h"
#include "launcher/rendezvous/rendezvous.h"
#include "launcher/report.h"

namespace launcher {

/// Runs a job: starts the workers, turns what happens into events for the
/// Policy, does what it says, and starts them again when it says so. Decides
/// nothing itself; never polls.
class Supervisor {
 public:
  struct Surroundings {
    EventLoop& loop;
    Consoles& consoles;
    SignalScope& signals;
    Rendezvous& rendezvous;
    const RunDirectory& directory;
    const JobCgroup& cgroup;
    Log& log;
  };

  Supervisor(const Job& job, const Surroundings& around);
  ~Supervisor();

  /// @returns the exit code of ddprun
  /// @throws LaunchError when workers cannot be started
  int run();

 private:
  enum class End { none, restart, finish };

  void start_attempt();
  AttemptResult finish_attempt();
  void round();
  void flush();

  void on_signals();
  void on_worker_exit(Worker& worker);
  void on_event(const Event& event);
  void arm_timer(std::chrono::milliseconds delay);
  void check_gone();

  void perform(const Wait&) {}
  void perform(const EndGroup& action);
  void perform(const SignalAll& action);
  void perform(const StopAll& action);
  void perform(const KillAll& action);
  void perform(const Restart&) { end_ = End::restart; }
  void perform(const Finish&) { end_ = End::finish; }

  const Job& job_;
  Surroundings around_;
  Policy policy_;
  End end_ = End::none;
  EventLoop::Token signal_token_ = 0;
  Attempt attempt_;
  std::chrono::steady_clock::time_point started_;
  std::optional<WorkerOutput> output_;
  std::optional<Workers> workers_;
  std::vector<WorkerExit> exits_;
};

}  // namespace launcher
