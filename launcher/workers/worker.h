#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/machine/process.h"
#include "launcher/plan/plan.h"
#include "launcher/workers/output/consoles.h"
#include "launcher/workers/output/worker_output.h"
#include "launcher/workers/workers_result.h"

namespace launcher {

/// One worker process.
struct Worker {
  WorkerSpec spec;
  Process process;
  const WorkerStream* output;       ///< its stdout; nullptr: ddprun reads none
  const WorkerStream* errors;       ///< its stderr; the same
  int asked_by = 0;                 ///< signal that asked it to end, or 0
  EventLoop::Token exit_watch = 0;  ///< of its pidfd
  bool has_exited = false;          ///< and WorkerExited has been posted
};

/// What the workers of an attempt share.
struct WorkerContext {
  const InheritedVariables& inherited;
  const CallerSettings& settings;  ///< that they do not inherit
  Consoles& consoles;
  LogWriter& logs;
  WorkerOutput& output;
  FilteredLogs& filtered;
  int null_fd;    ///< /dev/null, to be read
  int cgroup_fd;  ///< -1: none
  int error_fd;   ///< gets an ExecFailure if a program cannot be executed
};

/// A worker that only its process is missing of.
struct PreparedWorker {
  WorkerSpec spec;
  std::unique_ptr<const Execution> execution;
  Fd out;  ///< its stdout, and
  Fd err;  ///< its stderr; none: ddprun's own
  const WorkerStream* output;
  const WorkerStream* errors;
};

/// Makes a worker's folder in that of its attempt, its log files and its pipes.
///
/// @param path of the program
/// @throws LaunchError when a file cannot be made, std::system_error when the
///   system is at a limit
PreparedWorker prepare_worker(const std::string& path,
                              WorkerSpec spec,
                              const WorkerContext& context);

/// Makes its process.
///
/// stdin goes to one worker; the others have /dev/null, since two readers of
/// one stream get parts of it each.
///
/// @throws std::system_error when the system is at a limit
Worker start_worker(PreparedWorker& worker, const WorkerContext& context);

/// To it and its group. Of SIGWINCH its pseudo-terminals, if it has any, have
/// the size of ddprun's own terminal by then.
void signal_worker(const Worker& worker, int number);

/// The last lines of its stderr, as far as ddprun has seen them or they are in
/// a file.
std::vector<std::string> last_error_lines(const Worker& worker);

/// Of one that is still there, at the end.
Survivor survivor_of(const Worker& worker);

/// What the error pipe says: the first failure, or nothing when its end has
/// come, since every worker has executed its program.
///
/// @param errors read end, whose other ends are the workers'
std::optional<ExecFailure> read_exec_failure(const Fd& errors);

}  // namespace launcher
