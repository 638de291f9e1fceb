#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/job/policy/event.h"
#include "launcher/job/policy/stop_signals.h"
#include "launcher/options/options.h"

namespace launcher {

// Actions that the Policy requests in response to an event.

struct Warn {  ///< a message for the user
  std::string text;
};
struct Join {};
struct Leave {};
struct SendOutcome {  ///< to the other hosts
  HostOutcome outcome;
};
struct StartWorkers {
  World world;
};
struct PassOn {  ///< forward a signal to all workers and groups
  int number;
};
struct RequestStop {  ///< ask by stop file, else by the signal
  int number;
  std::chrono::milliseconds time;  ///< until the workers must have exited
};
struct StopWorkers {  ///< signal workers and groups so that they end
  int number;
};
struct KillWorkers {  ///< signal hung workers and their groups
  std::vector<int> local_ranks;
  int number;
};
struct NameLeft {  ///< name the processes that ended workers have left
  std::chrono::milliseconds grace;  ///< half of it until they get SIGTERM
};
struct KillAll {};          ///< SIGKILL to all processes of the job
struct TerminateStrays {};  ///< SIGTERM to children that are not workers
struct KillStrays {};       ///< SIGKILL to children that are not workers
struct ArmTimer {
  Timer timer;
  std::chrono::milliseconds delay;
};
struct DisarmTimer {
  Timer timer;
};
struct WriteReport {  ///< report the attempt that has ended
  Cause cause;
  std::optional<FirstFailure> first{};  ///< first failure on any host, if known
};
struct DrainOutput {};

using Action = std::variant<Warn,
                            Join,
                            Leave,
                            SendOutcome,
                            StartWorkers,
                            PassOn,
                            RequestStop,
                            StopWorkers,
                            KillWorkers,
                            NameLeft,
                            KillAll,
                            TerminateStrays,
                            KillStrays,
                            ArmTimer,
                            DisarmTimer,
                            WriteReport,
                            DrainOutput>;
using Actions = std::vector<Action>;

/// State machine that makes the supervisor's decisions: maps events to actions
/// and does not touch processes. Events that are not listed for a phase change
/// nothing. A message for the user comes as a Warn with the decision. Every
/// signal and every RendezvousNote is a Warn, too.
///
/// - joining: FolderMade -> Join. WorldFormed -> StartWorkers, running. A stop
///   signal, StartFailed, RendezvousLost or JobClosed -> the end.
///
/// - running: the last worker succeeds -> let the processes end that it left. A
///   worker fails -> SendOutcome, stop. Workers hang -> SendOutcome, stop,
///   KillWorkers. A stop signal -> Leave, stop with that signal. WorldBroken,
///   RendezvousLost or JobClosed -> stop. StartFailed -> SendOutcome, kill.
///
/// - running: the signal of --on-preempt -> RequestStop and the preempt timer,
///   preempted.
///
/// - preempted: the last worker succeeds -> let the processes end that it left;
///   the last worker ends after another one has failed -> Leave, stop. The
///   preempt timer -> Leave, stop. Workers hang -> Leave, stop, KillWorkers.
///   AllAreGone (no worker had started) -> the end. WorldBroken -> Leave.
///   JobClosed and RendezvousLost take no time from the workers; the
///   exit code of JobClosed counts in the end. All other events as in running.
///
/// - stopping: a stop signal -> Leave, StopWorkers with that signal. The second
///   stop signal from the keyboard, or the grace timer -> kill. ChildrenRemain
///   -> TerminateStrays, unless they are let end. AllAreGone -> end of the
///   attempt.
///
/// - killing: a stop signal -> Leave. ChildrenRemain -> KillStrays. AllAreGone
///   -> end of the attempt. The kill timer -> the end.
///
/// - stopping, killing: WorldBroken -> a failure or success in that world does
///   not count: end of the attempt as for a broken world.
///
/// - waiting: JobClosed, RendezvousLost or a stop signal -> the end.
///   WorldBroken -> WriteReport, Join, joining.
///
/// - draining: OutputDrained, the drain timer or a stop signal -> done.
///
/// - stopping, killing: the signal of --on-preempt -> Leave, unless all workers
///   had succeeded. joining: the signal of --on-preempt -> the end.
///
/// Terms: "stop" is StopWorkers (SIGTERM if no signal is named), the grace
/// timer and phase stopping. "Let end" is phase stopping, after a moment
/// NameLeft, after half of the grace period StopWorkers and TerminateStrays,
/// and then the grace timer. "Kill" is KillAll, the kill timer and phase
/// killing. "The end" is Leave, WriteReport, DrainOutput and phase draining. At
/// the "end of the attempt": a failure with restarts left, or a broken world ->
/// WriteReport, Join, joining; success of all workers -> SendOutcome,
/// waiting; a failure with several hosts -> waiting, because an earlier failure
/// on another host may have started another attempt; otherwise the end.
///
/// No attempt follows Leave, RendezvousLost or JobClosed. Signals that are not
/// stop signals (SIGUSR1, SIGALRM) are forwarded while there are workers.
/// SIGTSTP (from Ctrl-Z) stops running workers, and SIGCONT continues them;
/// neither is forwarded to workers that were asked to end.
class Policy {
 public:
  enum class Phase {
    joining,   ///< until the folder is there and the hosts have met
    running,   ///< the workers run
    stopping,  ///< workers were asked to end; grace period
    killing,   ///< workers got SIGKILL
    waiting,   ///< for other hosts; own workers have ended
    draining,  ///< ddprun's own output is written
    done,
    preempted  ///< workers were asked to save and exit in time
  };

  /// @param worker_count  of this host; replaces that of the options
  Policy(int worker_count, LaunchOptions options);

  /// Returns the actions for an event. The first phase is joining.
  Actions on(const Event& event);

  Phase phase() const { return phase_; }
  /// Number of workers of this attempt that have not exited.
  int alive() const { return alive_; }
  /// Returns whether that signal came while workers ran.
  bool was_preempted() const { return was_preempted_; }

 private:
  /// Handles an event in the present phase.
  Actions decide(const Event& event);
  Actions on_joining(const Event& event);
  Actions on_running(const Event& event);
  Actions on_preempted(const Event& event);
  Actions on_stopping(const Event& event);
  Actions on_killing(const Event& event);
  Actions start_workers(const World& world);
  Actions on_waiting(const Event& event);
  Actions on_draining(const Event& event);
  /// Handles events common to joining and waiting.
  Actions on_without_workers(const Event& event);
  /// Handles events common to stopping and killing.
  Actions on_while_ending(const Event& event);
  Actions on_exit_while_running(const WorkerExited& exit);
  Actions on_failed_start(const StartFailed& failed);
  Actions on_hang(const WorkersHang& hangs);
  Actions on_exit_while_preempted(const WorkerExited& exit);
  Actions on_signal_while_running(const SignalReceived& signal);
  Actions end_grace();
  Actions on_signal_while_stopping(const SignalReceived& signal);

  bool is_preemption(const SignalReceived& signal) const;
  Actions preempt(const SignalReceived& signal);
  Actions forbid_restart(const SignalReceived& signal);
  Actions end_hung(const WorkersHang& hangs);
  Actions stop(const Cause& cause, int number);
  Actions let_end();
  Actions kill(const Cause& cause);
  Actions warn_of_signal(const SignalReceived& signal) const;
  std::string stop_text() const;
  static Actions pass_on_while_ending(int number);
  Actions end_attempt();
  Actions join_again();
  Actions end_job(const Cause& cause);
  Actions leave();
  Actions send_failure(int rank, const Cause& cause);
  void note_broken_world(const WorldBroken& broken);

  int worker_count_;
  LaunchOptions options_;
  Phase phase_ = Phase::joining;
  World world_;
  Cause cause_;
  std::optional<FirstFailure> first_;  // first failure on any host, if known
  int alive_ = 0;
  bool is_member_ = true;     // of the rendezvous: may join again
  bool has_failure_ = false;  // a worker of this attempt failed
  bool was_preempted_ = false;
  bool starts_again_ = false;  // another attempt follows the failure
  int left_steps_ = 0;  // steps before the grace timer kills, of let_end()
  StopSignals stop_signals_;
};

/// Returns the name of a phase, as in its enumeration.
std::string text_of(Policy::Phase phase);

}  // namespace launcher
