#pragma once

#include "launcher/plan/plan.h"

namespace launcher {

/// Runs a job to its end and manages its port, folders and cgroup. Forks, and
/// returns in both processes (see run_guarded()).
///
/// @returns the exit code of ddprun
/// @throws LaunchError if the job cannot be started
int launch(const Job& job);

/// Describes the processes that launch() would start (--dry-run).
std::string dry_run(const Job& job);

/// Returns a run id that no other job has.
std::string make_run_id();

}  // namespace launcher
