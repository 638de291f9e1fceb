#pragma once

#include "launcher/base/environment.h"
#include "launcher/doctor/paths/hosts_facts.h"

namespace launcher {

/// First argument of ddprun as a worker of a path test. Not an option for
/// users.
inline constexpr const char* kPathTestArgument = "--path-test";

/// Runs the worker of the doctor's job over several hosts, one on each:
/// measures the paths to the other workers, which it finds by RANK, WORLD_SIZE,
/// MASTER_ADDR and MASTER_PORT. Rank 0 directs the test (PathTestCoordinator).
///
/// Writes PathMessages to stdout: PathHello, then PathPeers, PathReports (rank
/// 0: of all ranks; others: of their own) and PathEnd, or PathFailure. Ends
/// within three minutes.
///
/// @param host this host; an empty address means the address of its connection
///   to rank 0
/// @returns the exit code; 0 also if the test failed, so that the job's other
///   workers continue
int run_path_test(const TestedHost& host, const Environment& environment);

}  // namespace launcher
