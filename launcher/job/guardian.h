#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "launcher/base/fd.h"
#include "launcher/machine/job_cgroup.h"
#include "launcher/machine/signals.h"

namespace launcher {

/// Runs a job in a process of its own, the supervisor, a child of this one,
/// which becomes its guardian. `kill -9` of either leaves the other, which ends
/// the job:
///
/// - The guardian is the process that the user sees. It hands on every signal,
///   stops and continues as its shell says, and ends as the supervisor does.
///   What the supervisor leaves behind when it is killed becomes the guardian's
///   children, however it hides, and gets SIGKILL.
///   To a supervisor that does not take a signal of `stops` for five seconds
///   (the kernel holds it in a write to a file server that does not answer) the
///   guardian gives up hope: it sends the signal to the workers itself, and
///   kills the supervisor, and with it the job, when they have ended, after
///   the grace period, or at another such signal.
/// - The supervisor is told of the guardian's end by the end of a pipe. It has
///   a session and a name of its own, so that `pkill -9 ddprun` or a kill of
///   the process group meets one of the two.
///
/// Children that this process has already (a shell that became ddprun started
/// them) stay the guardian's and live on.
///
/// Returns in both processes, with the exit code that both are to end with, so
/// that what the caller cleans up is cleaned up by the one that is left. It may
/// find nothing left to clean up.
///
/// @param stops signals that ask the job to end
/// @param grace_period that the workers have to end after one
/// @param supervise runs the job in the supervisor; its descriptor is readable
///   once the guardian has died. What it throws is thrown there
/// @throws LaunchError when no process can be made, or when the supervisor has
///   been killed, with what is known of why
int run_guarded(const SignalScope& signals,
                const JobCgroup& cgroup,
                const std::vector<int>& stops,
                std::chrono::milliseconds grace_period,
                const std::function<int(const Fd& guardians_end)>& supervise);

}  // namespace launcher
