#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "launcher/base/fd.h"
#include "launcher/machine/job_cgroup.h"
#include "launcher/machine/signals.h"

namespace launcher {

/// Runs a job in a child process, the supervisor, and turns this process into
/// its guardian. If either process is killed by `kill -9`, the other one ends
/// the job:
///
/// - The guardian is the process that the user sees. It forwards every signal,
///   stops and continues with its shell's job control, and exits with the
///   supervisor's status. If the supervisor is killed, its remaining
///   descendants become the guardian's children, even if they had detached
///   themselves, and get SIGKILL. If the supervisor does not handle a signal of
///   `stops` for five seconds (for example because the kernel blocks it in a
///   write to a file server that does not answer), the guardian sends the
///   signal to the workers itself. It kills the supervisor, and with it the
///   job, when the workers have ended, after the grace period, or at another
///   signal of `stops`.
/// - The supervisor detects the guardian's death by the end of a pipe. It has
///   its own session and process name, so that `pkill -9 ddprun` or a kill of
///   the process group reaches only one of the two.
///
/// Children that this process already has (started by a shell that executed
/// ddprun) stay with the guardian and are not killed.
///
/// Returns in both processes, with the exit code that both must end with, so
/// that the surviving process runs the caller's cleanup. The cleanup must
/// accept that the other process may have done it already.
///
/// @param stops signals that ask the job to end
/// @param grace_period time for the workers to end after a stop signal
/// @param supervise runs the job in the supervisor; its descriptor becomes
///   readable when the guardian has died. Exceptions propagate in the
///   supervisor
/// @throws LaunchError if no process can be created, or if the supervisor was
///   killed, with the known reason
int run_guarded(const SignalScope& signals,
                const JobCgroup& cgroup,
                const std::vector<int>& stops,
                std::chrono::milliseconds grace_period,
                const std::function<int(const Fd& guardians_end)>& supervise);

}  // namespace launcher
