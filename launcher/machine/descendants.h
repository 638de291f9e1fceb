#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <vector>

#include "launcher/base/exit_status.h"

namespace launcher {

/// Makes this process the parent of orphaned descendants, so that daemons
/// started by workers stay under its control.
void become_subreaper();

/// Returns the children of this process, including ended ones that are not
/// reaped. Reads every process in /proc, so it is meant for the end of a job.
/// If /proc is not mounted or hides the children, tries all possible pids and
/// returns one child.
std::vector<pid_t> own_children();

/// Sends SIGKILL to all descendants of a process. Needed for a process that
/// SIGKILL does not end: its children then do not become children of this
/// process.
void kill_descendants(pid_t ancestor);

/// Returns the running children of a process that lead their own sessions: the
/// workers of a supervisor.
std::vector<pid_t> session_leaders_of(pid_t parent);

/// Returns whether this process has children.
bool has_children();

/// Returns how a child ended; std::nullopt while it runs. Does not reap: the
/// pid stays reserved.
std::optional<ExitStatus> peek_child(pid_t child);

/// Reaps children that have ended. Stops at the first one for which `is_kept`
/// returns true: its owner reaps it.
void reap_children(const std::function<bool(pid_t)>& is_kept);

/// Sends a signal to a child, or to its process group if the child leads one.
void signal_child(pid_t child, int number);

}  // namespace launcher
