#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/base/exit_status.h"
#include "launcher/plan/plan.h"
#include "launcher/workers/progress/hang.h"

namespace launcher {

// Events of an attempt's workers, and of the folder of their files.

struct FolderMade {  ///< the folder of the job's files is there
  std::string path;  ///< empty: there is none
};

struct WorkersStarted {};  ///< every worker has executed its program
struct WorkerExited {
  int local_rank;
  ExitStatus status;
};
struct WorkersHang {  ///< some workers make no progress
  Hang hang;
};
struct StartFailed {  ///< a folder or worker could not be made; none runs
  int exit_code;
  std::string text;
};
struct ChildrenRemain {};  ///< all workers ended; child processes remain
struct AllAreGone {};      ///< no process of the attempt is left

using WorkersEvent = std::variant<FolderMade,
                                  StartFailed,
                                  WorkersStarted,
                                  WorkersHang,
                                  WorkerExited,
                                  ChildrenRemain,
                                  AllAreGone>;

/// A worker of an attempt at one moment.
struct WorkerState {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  int asked_by = 0;                 ///< signal that asked it to end, or 0
  std::optional<ExitStatus> end{};  ///< std::nullopt: it runs
};

/// How one worker of an attempt ended.
struct WorkerExit {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  ExitStatus status;
  std::chrono::milliseconds after{0};  ///< time since the attempt's start
  int asked_by = 0;                    ///< signal that ddprun had sent it, or 0
  std::vector<std::string> last_lines;  ///< end of its stderr
  std::string error;                    ///< text of its error file
};

/// A worker that SIGKILL did not end in time.
struct Survivor {
  int rank = 0;
  pid_t pid = 0;
  /// The kernel refuses signals: another user's process.
  bool is_forbidden = false;
};

/// Result of an attempt.
struct WorkersResult {
  /// In the order in which the kernel reported them.
  std::vector<WorkerExit> exits;
  std::vector<Survivor> survivors;
  int64_t oom_kills = 0;   ///< see OutOfMemory
  std::string oom_cgroup;  ///< cgroup that counted them
};

/// Runs the workers of one attempt. Interface between the supervisor and the
/// processes; ProcessRunner is the production implementation, and tests replace
/// it by one without processes.
///
/// Posts events in the order in which they happened: StartFailed or
/// WorkersStarted, WorkersHang and WorkerExited. After the last worker has been
/// released, posts ChildrenRemain or AllAreGone whenever the set of remaining
/// processes may have changed.
class WorkerRunner {
 public:
  virtual ~WorkerRunner() = default;

  /// Begins to start all workers of the plan. No worker runs before all files
  /// are there. If one cannot be started, starts none and posts StartFailed. A
  /// request to end the workers ends the start.
  virtual void start(LaunchPlan plan) = 0;

  /// Requests that the workers save their state and exit within `time`. A
  /// worker with a stop file receives the request in the file. For every other
  /// worker, the processes that handle the signal receive it, or its process
  /// group if there are none and it runs; see receivers_of(). Returns the
  /// number of workers with a stop file.
  virtual int request_stop(int number, std::chrono::milliseconds time) = 0;

  enum class Purpose { pass_on, end };
  /// Signals every worker and its process group, or the rest of the group if
  /// the worker has ended. With Purpose::end, records for the report that
  /// ddprun asked the workers to end, and continues stopped workers.
  virtual void signal_all(int number, Purpose purpose) = 0;

  /// Sends a signal that ends one worker and its process group now.
  virtual void kill(int local_rank, int number) = 0;

  /// Sends SIGKILL to all workers and, as far as they can be found, to
  /// processes that signal_all() does not reach.
  virtual void kill_all() = 0;

  /// Reaps a worker. To be called after the worker's WorkerExited has been
  /// handled. The kernel may reuse its process id afterwards.
  virtual void release(int local_rank) = 0;

  /// Returns the names and ids of the processes that ended workers have left:
  /// "sh (pid 12), sleep (pid 13)".
  virtual std::string names_of_left() const = 0;
  /// Sends SIGTERM to children that are neither workers nor in a worker's
  /// process group, once to each.
  virtual void terminate_strays() = 0;
  /// Sends SIGKILL to all children that are not workers.
  virtual void kill_strays() = 0;

  /// Returns the current state of the attempt's workers; empty without an
  /// attempt.
  virtual std::vector<WorkerState> states() const = 0;

  /// Ends the attempt: forwards the remaining output, forgets the workers and
  /// returns their results. The result is empty if there was no attempt.
  virtual WorkersResult finish() = 0;
};

}  // namespace launcher
