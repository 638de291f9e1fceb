#pragma once

#include <chrono>
#include <string>

#include "launcher/hosts/join_steps.h"
#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/job/event_source.h"
#include "launcher/job/policy/policy.h"
#include "launcher/job/status.h"
#include "launcher/job/status/job_status.h"
#include "launcher/plan/plan.h"
#include "launcher/workers/worker_runner.h"

namespace launcher {

/// Runs a job: passes each event to the Policy and performs the returned
/// actions. Makes no decisions itself, and accesses the machine only through
/// interfaces.
class Supervisor {
 public:
  struct Seams {
    EventSource& events;
    Rendezvous& rendezvous;
    JoinSteps* join_steps = nullptr;  ///< runs before each join; nullptr: none
    WorkerRunner& workers;
    Status& status;
  };

  struct Folders {
    std::string files;     ///< of the run; has a subfolder per attempt
    std::string progress;  ///< of the progress files; empty: none
    std::string ends{};    ///< of the file of worker exits; empty: none
  };

  Supervisor(const Job& job, Folders folders, const Seams& seams);

  /// @returns the exit code of ddprun
  int run();

  Policy::Phase phase() const { return policy_.phase(); }

  /// Returns the current status, for `ddprun --status`. To be called between
  /// events.
  JobStatus status() const;

 private:
  void handle(const Event& event);
  void perform(const Actions& actions);
  void narrate(const Event& event, Policy::Phase before);

  void perform(const Join& action);
  void perform(const Leave& action);
  void perform(const TellOutcome& action);
  void perform(const StartWorkers& action);
  void perform(const PassOn& action);
  void perform(const RequestStop& action);
  void perform(const StopWorkers& action);
  void perform(const KillWorkers& action);
  void perform(const KillAll& action);
  void perform(const TerminateStrays&);
  void perform(const KillStrays&);
  void perform(const ArmTimer& action);
  void perform(const DisarmTimer& action);
  void perform(const WriteReport& action);
  void perform(const DrainOutput& action);

  const Job& job_;
  Folders folders_;
  Seams seams_;
  Policy policy_;
  World world_;  // of the last attempt
  int attempts_ = 0;
  std::chrono::steady_clock::time_point started_;
  std::string logs_;  // folder of the kept log files, if any
  std::chrono::milliseconds run_time_{0};
  int exit_code_ = 0;
};

}  // namespace launcher
