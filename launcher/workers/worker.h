#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/machine/process.h"
#include "launcher/plan/plan.h"
#include "launcher/workers/output/consoles.h"
#include "launcher/workers/output/run_directory.h"
#include "launcher/workers/output/worker_output.h"

namespace launcher {

/// One worker process.
struct Worker {
  WorkerSpec spec;
  Process process;
  /// Its stdout; nullptr if ddprun does not read it.
  const WorkerStream* output;
  /// Its stderr; nullptr if ddprun does not read it.
  const WorkerStream* errors;
  int asked_by = 0;                 ///< signal that asked it to end, or 0
  EventLoop::Token exit_watch = 0;  ///< watch of its pidfd
  bool has_exited = false;          ///< true once its exit is recorded
  bool is_watched = true;           ///< true while the Watcher has its group
};

/// State shared by all workers of an attempt.
struct WorkerContext {
  const InheritedVariables& inherited;
  const CallerSettings& settings;  ///< caller's settings, restored in workers
  Consoles& consoles;
  OutputThread& logs;
  WorkerOutput& output;
  FilteredLogs& filtered;
  int null_fd;     ///< /dev/null, open for reading
  int cgroup_fd;   ///< cgroup of the attempt; -1: none
  int error_fd;    ///< receives an ExecFailure if a program cannot be executed
  int watcher_fd;  ///< see Watcher
};

/// Everything of a worker except its process: log files and pipes.
struct PreparedWorker {
  WorkerSpec spec;
  std::unique_ptr<const Execution> execution;
  Fd out;  ///< its stdout; none: ddprun's own
  Fd err;  ///< its stderr; none: ddprun's own
  const WorkerStream* output;
  const WorkerStream* errors;
};

/// Creates a worker's pipes.
///
/// @param path of the program
/// @param files its log files
/// @throws std::system_error if a system limit is reached
PreparedWorker prepare_worker(const std::string& path,
                              WorkerSpec spec,
                              AttemptFiles::OfWorker files,
                              const WorkerContext& context);

/// Starts the worker's process.
///
/// Only one worker inherits stdin. The others read from /dev/null, because two
/// readers of one stream would each receive only parts of it.
///
/// @throws std::system_error if a system limit is reached
Worker start_worker(PreparedWorker& worker, const WorkerContext& context);

/// Sends a signal to the worker and its process group. Before SIGWINCH, resizes
/// the worker's pseudo-terminals, if any, to fit ddprun's own terminal.
void signal_worker(const Worker& worker, int number);

/// Last output of a worker, for the report.
struct LastWords {
  std::vector<std::string> lines;  ///< last lines of its stderr
  std::string error;               ///< its error file
};

/// Returns the LastWords of workers, as far as ddprun or files have them. Waits
/// for the files for a few seconds only: their file server may not answer.
std::vector<LastWords> last_words(const std::vector<const Worker*>& workers);

}  // namespace launcher
