#pragma once

#include <chrono>
#include <variant>
#include <vector>

#include "launcher/process/exit_status.h"

namespace launcher {

/// What can happen while the workers of an attempt run.
struct WorkerExited {
  int local_rank;
  ExitStatus status;
};
struct SignalReceived {
  int number;
};
struct TimeIsUp {};    ///< the timer that the last action set
struct AllAreGone {};  ///< no process of the attempt is left
using Event = std::variant<WorkerExited, SignalReceived, TimeIsUp, AllAreGone>;

/// What is to be done about it.
struct Wait {};
struct EndGroup {  ///< a worker is done: kill what it left in its group
  int local_rank;
};
struct SignalAll {
  int number;
};
struct StopAll {  ///< signal all, and set the timer
  int number;
  std::chrono::milliseconds time;
};
struct KillAll {  ///< SIGKILL to everything, and set the timer
  std::chrono::milliseconds time;
};
struct Restart {};
struct Finish {};
using Action =
    std::variant<Wait, EndGroup, SignalAll, StopAll, KillAll, Restart, Finish>;

/// The supervisor's decisions as a state machine: events in, actions out, no
/// process touched.
///
/// - running: exit 0 -> EndGroup, the last one KillAll; a failure -> StopAll
///   with SIGTERM; a stop signal -> StopAll with it.
///
/// - stopping: an exit -> Wait; a stop signal -> SignalAll, the second from the
///   keyboard KillAll; time is up -> KillAll; all are gone -> Restart or
///   Finish.
///
/// - killing: an exit or a signal -> Wait; time is up -> Finish; all are
///   gone -> Restart or Finish.
///
/// An attempt that failed is started again while --max-restarts allows it and
/// no signal asked ddprun to end. Signals that are no stop signals (SIGUSR1,
/// SIGUSR2) are only passed on.
class Policy {
 public:
  enum class Phase { running, stopping, killing };
  /// Why an attempt ends before its workers are done.
  enum class Cause { none, failure, signal };

  struct Options {
    int worker_count = 1;
    int max_restarts = 0;
    std::chrono::milliseconds grace_period{30'000};
    std::vector<int> stop_signals;
  };

  explicit Policy(Options options);

  Action on(const Event& event);

  Phase phase() const { return phase_; }
  /// Workers of this attempt that have not exited.
  int alive() const { return alive_; }
  int restarts() const { return restarts_; }
  /// What came first.
  Cause cause() const { return cause_; }
  /// The signal that asked ddprun to end, 0 if none did.
  int stop_signal() const { return stop_signal_; }

 private:
  Action on_exit(const WorkerExited& event);
  Action on_signal(int number);
  Action on_time();
  Action on_gone();
  Action kill_all();
  bool is_stop_signal(int number) const;

  Options options_;
  Phase phase_ = Phase::running;
  int alive_;
  int restarts_ = 0;
  int stop_signal_ = 0;
  int keyboard_signals_ = 0;
  Cause cause_ = Cause::none;
};

}  // namespace launcher
