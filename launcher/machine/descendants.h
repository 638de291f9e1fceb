#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <vector>

#include "launcher/base/exit_status.h"

namespace launcher {

/// Makes orphans of our descendants our own children, so that a daemon that a
/// worker started cannot get away.
void become_subreaper();

/// The children of this process, those too that have ended and are not reaped.
/// Looks at every process in /proc: for the end of a job. Where /proc shows
/// none of them (it is not mounted, or hides them), it tries the numbers that
/// there may be, and finds one.
std::vector<pid_t> own_children();

/// SIGKILL to all that a process has started, and to what these have. For one
/// that SIGKILL does not end: nobody else becomes their parent.
void kill_descendants(pid_t ancestor);

/// The children of a process that lead sessions of their own and have not
/// ended: a supervisor's workers.
std::vector<pid_t> session_leaders_of(pid_t parent);

/// This process has children.
bool has_children();

/// How a child ended; nothing while it lives. Its pid stays reserved.
std::optional<ExitStatus> peek_child(pid_t child);

/// Reaps children that have ended, but stops at one for which `is_kept` says
/// so: its owner reaps it.
void reap_children(const std::function<bool(pid_t)>& is_kept);

/// SIGKILL (or another signal) to a child, with its group where it leads one.
void signal_child(pid_t child, int number);

}  // namespace launcher
