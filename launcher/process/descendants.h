#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

namespace launcher {

/// Makes orphans of our descendants our own children, so that a daemon that a
/// worker started cannot get away.
void become_subreaper();

/// Process ids in /proc.
std::vector<pid_t> all_processes();

/// The children of this process. Reads all of /proc: for the end of a job.
std::vector<pid_t> own_children();

/// This process has children (the guardian does not count).
bool has_children();

/// Reaps adopted orphans that have ended. Stops at a child for which
/// `is_worker` says so: its owner reaps it.
void reap_orphans(const std::function<bool(pid_t)>& is_worker);

/// SIGKILL (or another signal) to a child, with its group where it leads one.
void signal_child(pid_t child, int number);

}  // namespace launcher
