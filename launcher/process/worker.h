#pragma once

#include <string>

#include "launcher/event_loop.h"
#include "launcher/output/consoles.h"
#include "launcher/output/worker_output.h"
#include "launcher/plan.h"
#include "launcher/process/process.h"

namespace launcher {

/// One worker process.
struct Worker {
  WorkerSpec spec;
  Process process;
  const WorkerStream* errors;       ///< its stderr
  int asked_by = 0;                 ///< signal that asked it to end, or 0
  EventLoop::Token exit_watch = 0;  ///< of its pidfd
};

/// What the workers of an attempt share.
struct WorkerContext {
  const Environment& environment;  ///< that they inherit
  Consoles& consoles;
  WorkerOutput& output;
  int cgroup_fd;  ///< -1: none
  int error_fd;   ///< gets an ExecFailure if a program cannot be executed
};

/// Starts a worker: its folder, its log files, its pipes, its process.
///
/// stdin goes to the first worker; the others have /dev/null, since two readers
/// of one stream get parts of it each.
///
/// @throws LaunchError when a file cannot be made, std::system_error when the
///   system is at a limit
Worker start_worker(const std::string& path,
                    const WorkerSpec& spec,
                    const WorkerContext& context);

/// Waits until every worker has executed its program or given up.
///
/// @param errors read end of the error pipe, whose other ends are the workers'
/// @throws LaunchError when one could not execute it
void require_all_executed(const std::string& path, const Fd& errors);

}  // namespace launcher
