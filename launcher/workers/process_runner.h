#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>

#include "launcher/base/error.h"
#include "launcher/machine/cgroup.h"
#include "launcher/machine/strays.h"
#include "launcher/machine/watcher.h"
#include "launcher/workers/progress/progress_watch.h"
#include "launcher/workers/worker.h"
#include "launcher/workers/worker_runner.h"

namespace launcher {

/// Runs the workers of an attempt as processes of this host.
class ProcessRunner : public WorkerRunner {
 public:
  struct Context {
    EventLoop& loop;
    Consoles& consoles;
    OutputThread& logs;
    const JobCgroup& cgroup;
    const Environment& environment;  ///< variables that workers inherit
    const CallerSettings& settings;  ///< caller's settings, restored in workers
    int cpu_count;                   ///< CPUs that the workers share
    const Watcher& watcher;
    Strays& strays;
    std::function<void(const WorkersEvent&)> post;
  };

  explicit ProcessRunner(const Context& context)
      : context_(context), inherited_(context.environment) {}
  /// Sends SIGKILL to the remaining workers without waiting for them.
  ~ProcessRunner() override;
  ProcessRunner(const ProcessRunner&) = delete;
  ProcessRunner& operator=(const ProcessRunner&) = delete;

  void start(LaunchPlan plan) override;
  int request_stop(int number, std::chrono::milliseconds time) override;
  void signal_all(int number, Purpose purpose) override;
  void kill(int local_rank, int number) override;
  void kill_all() override;
  void release(int local_rank) override;
  std::string names_of_left() const override;
  void terminate_strays() override;
  void kill_strays() override;
  std::vector<WorkerState> states() const override;
  WorkersResult finish() override;

  /// Handles SIGCHLD. The owner calls this function for every SIGCHLD.
  void on_child_ended();

 private:
  /// The cgroup and the temporary folder of the attempt before. The next
  /// attempt starts before they are removed, which takes the kernel about as
  /// long as the start of a worker.
  struct Leftovers {
    std::string cgroup;
    std::string folder;
  };

  /// A start that waits until the thread of the logs has created its files.
  struct Start {
    LaunchPlan plan;
    AttemptFiles files{};
    std::optional<LaunchError> error{};
  };

  void on_files_made(const std::shared_ptr<Start>& start);
  void start_all(Start& start);
  void end_start_without_files();
  void start_one(PreparedWorker& prepared, const WorkerContext& shared);
  void on_exec_result();
  void abandon_start(const StartFailed& failure);
  void post_failed_start();
  void end_start();
  void on_exit(Worker& worker);
  void post_what_is_left();
  void unwatch_empty_groups();
  void forget();
  void remove_leftovers();
  Worker& worker_of(int local_rank);
  std::vector<WorkerExit>::iterator exit_of(const Worker& worker);
  bool has_owner(pid_t pid) const;
  bool has_running() const;
  bool is_in_workers_group(pid_t pid) const;

  Context context_;
  InheritedVariables inherited_;
  int attempts_ = 0;
  std::string cgroup_;  // name of this attempt's cgroup
  // Folder of this attempt to remove; empty: none.
  std::string temporary_folder_;
  Leftovers leftovers_;
  bool is_active_ = false;           // true from start() to finish()
  std::shared_ptr<Start> starting_;  // until its files are there
  std::chrono::steady_clock::time_point started_;
  std::optional<OutOfMemory> memory_;
  FilteredLogs filtered_;  // declared before output_, which writes to it
  std::optional<WorkerOutput> output_;
  std::list<Worker> workers_;
  std::optional<ProgressWatch> progress_;  // until workers are asked to end
  std::vector<WorkerExit> exits_;
  std::set<pid_t> asked_;  // children other than workers, asked to end
  // State until every worker has executed its program: the error pipe, and
  // exits that arrived before the other workers had executed theirs.
  std::string path_;
  Fd exec_errors_;
  EventLoop::Token exec_watch_ = 0;
  std::vector<WorkerExited> early_exits_;
  // Set while the killed workers of a failed start end.
  std::optional<StartFailed> failure_;
};

}  // namespace launcher
