#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/workers/worker_runner.h"

namespace launcher {

// Events of a job, in addition to the rendezvous' answers and the workers'
// events.

struct SignalReceived {
  int number;
};
enum class Timer {
  grace,    ///< workers were asked to end
  kill,     ///< processes got SIGKILL
  drain,    ///< ddprun's own output is being written
  preempt,  ///< workers save and end by themselves
};
struct TimerFired {
  Timer timer;
};
struct OutputDrained {};  ///< all output of ddprun has been written

using Event = std::variant<WorldFormed,
                           WorldBroken,
                           RendezvousLost,
                           JobClosed,
                           RendezvousNote,
                           FolderMade,
                           WorkersStarted,
                           WorkerExited,
                           WorkersHang,
                           StartFailed,
                           ChildrenRemain,
                           AllAreGone,
                           SignalReceived,
                           TimerFired,
                           OutputDrained>;

/// Event that ended an attempt or the job; std::monostate if all workers
/// succeeded.
using Cause = std::variant<std::monostate,
                           WorkerExited,
                           StartFailed,
                           SignalReceived,
                           WorldBroken,
                           RendezvousLost,
                           JobClosed,
                           WorkersHang>;

/// Returns the exit status of the failed worker if its failure is the cause;
/// std::nullopt for other causes. Hung workers count as ended by ddprun's
/// signal.
std::optional<ExitStatus> failure_of(const Cause& cause);

/// Returns whether the cause is a worker's failure with one of these exit
/// codes.
bool is_final(const Cause& cause, const std::vector<int>& codes);

/// Returns whether the cause is a hang that includes this worker.
bool is_hung(const Cause& cause, int local_rank);

/// Returns the name of a timer, by which an EventLoop knows it.
std::string text_of(Timer timer);

}  // namespace launcher
