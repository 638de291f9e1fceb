#pragma once

#include <list>
#include <optional>

#include "launcher/output/consoles.h"
#include "launcher/output/worker_output.h"
#include "launcher/plan.h"
#include "launcher/process/process.h"

namespace launcher {

/// One running worker.
struct Worker {
  WorkerSpec spec;
  Process process;
  const WorkerStream* errors;  ///< its stderr
  int asked_by = 0;            ///< signal sent to it while it lived, or 0
};

/// The processes of one attempt and whatever they started.
class Workers {
 public:
  struct Surroundings {
    const Environment& environment;
    Consoles& consoles;
    WorkerOutput& output;
    int cgroup_fd;
  };

  /// Starts all workers of the plan or, when one cannot be started, none.
  ///
  /// stdin goes to the first worker; the others have /dev/null, since two
  /// readers of one stream get parts of it each.
  ///
  /// @throws LaunchError when a program cannot be executed or the system is at
  ///   a limit
  Workers(const LaunchPlan& plan, const Surroundings& around);
  /// Kills what still lives; does not wait for it.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  std::list<Worker>& all() { return workers_; }

  /// Signals every worker's group. `asks_to_end`: to be noted in asked_by.
  void signal_all(int number, bool asks_to_end);

  /// `pid` is a worker that has not been reaped.
  bool has_unreaped(pid_t pid) const;
  bool are_all_reaped() const;

  enum class Sweep { strays, everything };
  /// Kills children that are no workers: strays are those that left the
  /// workers' process groups, daemons for instance.
  void sweep(Sweep what) const;

 private:
  void start(const std::string& path,
             const WorkerSpec& spec,
             const Surroundings& around,
             int error_fd);
  void require_all_executed(const std::string& path, const Fd& errors);
  void end_now();

  std::list<Worker> workers_;
};

}  // namespace launcher
