#pragma once

#include <chrono>
#include <vector>

#include "launcher/plan/plan.h"
#include "launcher/workers/progress/worker_state.h"
#include "launcher/workers/workers_result.h"

namespace launcher {

/// The workers of one attempt, as the supervisor sees them. An interface, so
/// that tests can do without processes; ProcessRunner is the real one.
///
/// What happens to the workers comes as events, in the order in which it
/// happened: StartFailed, WorkersHang, WorkerExited and, once the last worker
/// has been released, ChildrenRemain or AllAreGone whenever something may have
/// changed.
class WorkerRunner {
 public:
  virtual ~WorkerRunner() = default;

  /// Starts all workers of the plan or, when one cannot be started, none:
  /// StartFailed.
  virtual void start(LaunchPlan plan) = 0;

  /// Tells the workers to save and to end within `time`: those who ask for it
  /// by their files, all others by the signal. Returns how many have asked.
  virtual int request_stop(int number, std::chrono::milliseconds time) = 0;

  enum class Purpose { pass_on, end };
  /// Signals every worker and its process group, or what is left of the group.
  /// Whom ddprun asked to end is noted for the report, and continued if it was
  /// stopped.
  virtual void signal_all(int number, Purpose purpose) = 0;

  /// Signals one worker and its group, which is to end now.
  virtual void kill(int local_rank, int number) = 0;

  /// SIGKILL to all, and to what hides from signal_all() where it can be found.
  virtual void kill_all() = 0;

  /// To be called when the WorkerExited of this worker has been handled; its
  /// process id may be in new use from now on.
  virtual void release(int local_rank) = 0;

  /// Sends SIGTERM to children that are no workers: once to each that is in no
  /// worker's process group.
  virtual void ask_strays() = 0;
  /// Sends SIGKILL to all children that are no workers.
  virtual void kill_strays() = 0;

  /// The workers of the attempt as they are now; empty when there is none.
  virtual std::vector<WorkerState> states() = 0;

  /// Ends the attempt: passes on the rest of the output and forgets the
  /// workers. Empty when there was no attempt.
  virtual WorkersResult finish() = 0;
};

}  // namespace launcher
