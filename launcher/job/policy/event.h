#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/workers/workers_event.h"

namespace launcher {

// What can happen to a job, beside the rendezvous' answers and what its workers
// do.

struct SignalReceived {
  int number;
};
enum class Timer {
  grace,    ///< of workers that were asked to end
  kill,     ///< of processes that got SIGKILL
  drain,    ///< of ddprun's own output
  restart,  ///< until the next attempt
  limit,    ///< of the job's run time
  preempt,  ///< of workers that are to save and to end by themselves
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
                           WorkersHang,
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
                           StoppedCleanly,
                           WorkersHang>;

/// How the worker ended whose failure is the cause; nothing when something
/// else is. Those that hang end as ddprun ends them.
std::optional<ExitStatus> failure_of(const Cause& cause);

/// A worker's failure with one of these exit codes.
bool is_final(const Cause& cause, const std::vector<int>& codes);

/// The cause is a hang, of this worker or of this one and others.
bool is_hung(const Cause& cause, int local_rank);

}  // namespace launcher
