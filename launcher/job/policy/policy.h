#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "launcher/job/policy/actions.h"
#include "launcher/job/policy/event.h"
#include "launcher/job/policy/stop_signals.h"
#include "launcher/options/preemption.h"
#include "launcher/options/restart_budget.h"

namespace launcher {

/// The supervisor's decisions as a state machine: events in, actions out, no
/// process touched. An event that a phase does not name changes nothing.
///
/// - joining: WorldFormed -> StartWorkers, running. A stop signal,
///   RendezvousLost or JobClosed -> the end.
///
/// - pausing: the restart timer -> Join, joining. A stop signal, RendezvousLost
///   or JobClosed -> the end.
///
/// - running: the last worker succeeds -> stop what they left. A worker fails
///   -> TellOutcome, stop. Workers hang -> TellOutcome, stop, KillWorkers. A
///   stop signal -> Leave, stop with it. WorldBroken, RendezvousLost or
///   JobClosed -> stop. StartFailed -> kill.
///
/// - running: the signal of --on-preempt -> RequestStop and the preempt timer,
///   preempted.
///
/// - preempted: the last worker succeeds -> stop what they left; ends, after
///   another one has failed -> Leave, stop. The preempt timer, WorldBroken ->
///   Leave, stop. Workers hang -> Leave, stop, KillWorkers. All other events as
///   in running.
///
/// - stopping: a stop signal -> Leave, StopWorkers with it. The second from the
///   keyboard, or the grace timer -> kill. ChildrenRemain -> AskStrays.
///   AllAreGone -> end of the attempt.
///
/// - killing: a stop signal -> Leave. ChildrenRemain -> KillStrays.
///   AllAreGone -> end of the attempt. The kill timer -> the end.
///
/// - stopping, killing: WorldBroken -> a failure in that world, or its success,
///   does not count: end of the attempt as for a broken world. JobClosed by
///   another host's failure that was first -> it is the cause.
///
/// - waiting: JobClosed, RendezvousLost or a stop signal -> the end.
///   WorldBroken -> WriteReport, Join, joining; after a failure here only if
///   another host's was first or another host has vanished, else the end.
///
/// - draining: OutputDrained, the drain timer or a stop signal -> done.
///
/// - stopping, killing: the signal of --on-preempt -> Leave, unless all
///   workers had succeeded. joining, pausing: it -> the end.
///
/// - everywhere before draining: the limit timer -> without workers, the end;
///   with workers, Leave and, while they run, stop.
///
/// In these, stop is StopWorkers (SIGTERM if no signal is named) and the grace
/// timer, stopping. Kill is KillAll and the kill timer, killing. The end is
/// Leave, WriteReport and DrainOutput, draining. At the end of an attempt, a
/// failure with restarts left -> WriteReport and the restart timer, pausing, or
/// without a delay Join, joining; a broken world -> WriteReport, Join, joining;
/// success of all workers -> TellOutcome, waiting; a failure with several hosts
/// -> waiting, for whose was first; else the end.
///
/// After Leave, RendezvousLost and JobClosed there is no other attempt. Signals
/// that are no stop signals (SIGUSR1, SIGALRM) are passed on while there are
/// workers. SIGTSTP, from Ctrl-Z, stops workers that run, and SIGCONT continues
/// them; neither touches workers that are to end. SIGKILL, of whose coming the
/// guardian's end tells, is a stop signal that allows no grace.
class Policy {
 public:
  enum class Phase {
    joining,   ///< until the hosts have formed a world
    running,   ///< the workers run
    stopping,  ///< they were asked to end and have a grace period
    killing,   ///< they got SIGKILL
    waiting,   ///< ours are done; for the other hosts, or their news
    draining,  ///< ddprun's own output is written
    done,
    pausing,   ///< until the next attempt, after a failure
    preempted  ///< the workers were asked to save and to end in time
  };

  struct Options {
    int worker_count = 1;
    int max_restarts = 0;
    RestartRules restart_rules{};
    std::vector<int> final_codes{};  ///< that no restart follows
    std::chrono::milliseconds grace_period{30'000};
    std::vector<int> stop_signals;
    std::optional<std::chrono::milliseconds> time_limit{};
    std::optional<Preemption> on_preempt{};
    /// After a stop signal, workers that all end with exit code 0 in time are a
    /// success. Without it the signal is the cause, whatever they do.
    bool stops_cleanly = false;
  };
  using Time = RestartBudget::Time;

  explicit Policy(Options options);

  /// What a job begins with; the phase is joining.
  Actions begin() const;

  /// @param now of the event, for restarts within a time; any steady clock
  Actions on(const Event& event, Time now = {});

  Phase phase() const { return phase_; }
  /// Workers of this attempt that have not exited.
  int alive() const { return alive_; }
  /// Whether the job goes on after this signal, by `Options::on_preempt`.
  bool is_preemption(const SignalReceived& signal) const;

 private:
  Actions on_joining(const Event& event);
  Actions on_pausing(const Event& event);
  Actions on_running(const Event& event);
  Actions on_preempted(const Event& event);
  Actions on_stopping(const Event& event);
  Actions on_killing(const Event& event);
  Actions on_waiting(const Event& event);
  Actions on_waiting_after_failure(const Event& event);
  Actions on_draining(const Event& event);
  Actions on_time_is_up();
  /// What joining, pausing and waiting share.
  Actions on_without_workers(const Event& event);
  /// What stopping and killing share.
  Actions on_while_ending(const Event& event);
  Actions on_exit_while_running(const WorkerExited& exit);
  Actions on_hang(const WorkersHang& hangs);
  Actions on_exit_while_preempted(const WorkerExited& exit);
  Actions on_signal_while_running(const SignalReceived& signal);
  Actions on_signal_while_stopping(const SignalReceived& signal);

  Actions preempt(const SignalReceived& signal);
  Actions forbid_restart(const SignalReceived& signal);
  Actions end_hung(const WorkersHang& hangs);
  Actions stop(const Cause& cause, int number);
  Actions kill(const Cause& cause);
  static Actions pass_on_while_ending(int number);
  Actions end_attempt();
  Actions join_again();
  Actions pause_and_join();
  Actions end_job(const Cause& cause);
  Actions leave();
  Actions tell_failure(int rank, const Cause& cause);
  bool may_restart() const;
  void hear(const JobClosed& closed);

  Options options_;
  RestartBudget budget_;
  Phase phase_ = Phase::joining;
  World world_;
  Cause cause_;
  std::optional<FirstFailure> first_;  // of all hosts, once that is known
  int alive_ = 0;
  bool is_member_ = true;      // of the rendezvous: may join again
  bool has_failure_ = false;   // of any worker of this attempt
  Time started_;               // this attempt
  bool starts_again_ = false;  // after the failure that was told
  Time now_;
  StopSignals stop_signals_;
};

}  // namespace launcher
