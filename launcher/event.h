#pragma once

#include <chrono>
#include <string>
#include <variant>

#include "launcher/process/exit_status.h"
#include "launcher/rendezvous/rendezvous.h"

namespace launcher {

// What can happen to a job, beside the rendezvous' answers.

struct WorkerExited {
  int local_rank;
  ExitStatus status;
};
struct StartFailed {  ///< no worker runs: one of them could not be started
  int exit_code;
  std::string text;
};
struct ChildrenRemain {};  ///< no worker is left, but something they started is
struct AllAreGone {};      ///< no process of the attempt is left
struct SignalReceived {
  int number;
};
enum class Timer {
  grace,    ///< of workers that were asked to end
  kill,     ///< of processes that got SIGKILL
  drain,    ///< of ddprun's own output
  restart,  ///< until the next attempt
  limit,    ///< of the job's run time
};
struct TimerFired {
  Timer timer;
};
struct OutputDrained {};  ///< all that ddprun had to write has been written

using Event = std::variant<WorldFormed,
                           WorldBroken,
                           RendezvousLost,
                           JobClosed,
                           RendezvousNote,
                           WorkerExited,
                           StartFailed,
                           ChildrenRemain,
                           AllAreGone,
                           SignalReceived,
                           TimerFired,
                           OutputDrained>;

/// The job has run for as long as --time-limit allows.
struct TimeIsUp {
  std::chrono::milliseconds limit;
};
/// All workers have ended with exit code 0 after a stop signal, and
/// --clean-stop makes this a success.
struct StoppedCleanly {
  int number;  ///< of the signal
};

/// Why an attempt, or the job, ends: the event that decided it. Nothing when
/// all workers succeeded.
using Cause = std::variant<std::monostate,
                           WorkerExited,
                           StartFailed,
                           SignalReceived,
                           WorldBroken,
                           RendezvousLost,
                           JobClosed,
                           TimeIsUp,
                           StoppedCleanly>;

}  // namespace launcher
