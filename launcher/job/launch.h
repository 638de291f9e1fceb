#pragma once

#include "launcher/plan/plan.h"

namespace launcher {

/// Runs a job to its end with all that belongs to it: its port, its folder, its
/// cgroup. Forks, and returns in both processes (see run_guarded()).
///
/// @returns the exit code of ddprun
/// @throws LaunchError when it cannot be started
int launch(const Job& job);

/// What launch() would start, as text (--dry-run).
std::string dry_run(const Job& job);

/// A name that no other job has.
std::string make_run_id();

}  // namespace launcher
