#pragma once

#include "launcher/plan/plan.h"

namespace launcher {

/// Runs a job to its end and manages its port, folders and cgroup. To be called
/// before this process has a second thread: forks the Watcher.
///
/// @returns the exit code of ddprun
/// @throws LaunchError if the job cannot be started
int launch(const Job& job);

/// Describes the processes that launch() would start on this host (--dry-run).
/// Resolves no host name and meets no host, so that a cluster's job can be
/// checked elsewhere: all hosts have this one's number of workers, and where
/// the hosts agree on ranks, this one has the rank that it asks for, or 0.
///
/// @throws LaunchError if the port of a store on this host is in use
std::string dry_run(const Job& job);

/// Returns a run id that no other job has.
std::string make_run_id();

}  // namespace launcher
