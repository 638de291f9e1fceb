#pragma once

#include <chrono>
#include <string>

#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/job/policy/policy.h"
#include "launcher/job/report/report_json.h"
#include "launcher/plan/plan.h"
#include "launcher/workers/worker_runner.h"

namespace launcher {

/// Source of events and timers; the only place where the supervisor blocks. An
/// interface, so that tests can run without a clock; JobEvents is the
/// production implementation.
class EventSource {
 public:
  virtual ~EventSource() = default;

  /// Blocks until the next event. Events are returned in the order in which
  /// they happened.
  virtual Event next() = 0;

  /// Returns the current time.
  virtual std::chrono::steady_clock::time_point now() const = 0;

  /// Delivers a TimerFired after `delay`. Arming an armed timer restarts it.
  virtual void arm(Timer timer, std::chrono::milliseconds delay) = 0;
  virtual void disarm(Timer timer) = 0;
};

/// Receives ddprun's messages for the user. An interface, so that tests can
/// read the messages; ConsoleStatus is the production implementation.
class Status {
 public:
  virtual ~Status() = default;

  virtual void info(const std::string& text) = 0;
  virtual void warn(const std::string& text) = 0;
  /// Writes the report of a finished attempt.
  virtual void write_report(const Report& report) = 0;
  /// Keeps the state of the job in --report-json.
  virtual void write_state(const JobState& state) = 0;

  /// Writes the remaining output of a finished job and then requests an
  /// OutputDrained event.
  virtual void drain() = 0;
};

/// Runs a job: passes each event to the Policy and performs the returned
/// actions. Makes no decisions itself, and accesses the machine only through
/// interfaces.
class Supervisor {
 public:
  struct Seams {
    EventSource& events;
    Rendezvous& rendezvous;
    WorkerRunner& workers;
    Status& status;
  };

  /// @param job_directory see JobDirectory; empty: none
  Supervisor(const Job& job, std::string job_directory, const Seams& seams);

  /// Runs the job from FolderMade on.
  ///
  /// @returns the exit code of ddprun
  int run();

  Policy::Phase phase() const { return policy_.phase(); }

 private:
  void handle(const Event& event);
  void perform(const Actions& actions);
  JobState state() const;

  void perform(const Warn& action);
  void perform(const Join& action);
  void perform(const Leave& action);
  void perform(const SendOutcome& action);
  void perform(const StartWorkers& action);
  void perform(const PassOn& action);
  void perform(const RequestStop& action);
  void perform(const StopWorkers& action);
  void perform(const KillWorkers& action);
  void perform(const NameLeft& action);
  void perform(const KillAll& action);
  void perform(const TerminateStrays&);
  void perform(const KillStrays&);
  void perform(const ArmTimer& action);
  void perform(const DisarmTimer& action);
  void perform(const WriteReport& action);
  void perform(const DrainOutput& action);

  const Job& job_;
  std::string folder_;  // of the job's files; has a subfolder per attempt
  std::string job_directory_;
  Seams seams_;
  Policy policy_;
  World world_;  // of the last attempt
  int attempts_ = 0;
  std::string logs_;  // folder of the kept log files, if any
  int exit_code_ = 0;
};

}  // namespace launcher
