#include <fcntl.h>

#include <csignal>
#include <filesystem>

#include "launcher/base/error.h"
#include "launcher/machine/exec_failure.h"
#include "launcher/workers/output/run_directory.h"
#include "launcher/workers/process_runner.h"

// Part of ProcessRunner: starting workers, until each has executed its program.
namespace launcher {
namespace {

/// Creates the attempt folder of every worker; usually all workers share one.
void make_attempt_folders(const LaunchPlan& plan) {
  std::string made;
  for (const WorkerSpec& worker : plan.workers) {
    const std::string folder =
        std::filesystem::path(worker.directory).parent_path();
    if (!folder.empty() && folder != made) {
      make_attempt_folder(folder, worker.file_mode);
      made = folder;
    }
  }
}

}  // namespace

void ProcessRunner::start(LaunchPlan plan) {
  is_active_ = true;
  started_ = std::chrono::steady_clock::now();
  output_.emplace(context_.loop);
  path_ = plan.path;
  try {
    start_all(plan);
  } catch (const LaunchError& error) {
    abandon_start({error.exit_code(), error.what()});
  } catch (const std::system_error& error) {
    abandon_start({kExitFailure,
                   "the workers cannot be started (" +
                       std::string(error.what()) +
                       "); check ulimit -a, or start fewer"});
  }
}

void ProcessRunner::start_all(LaunchPlan& plan) {
  filtered_ = make_filtered_logs(plan, context_.logs);
  Pipe errors = make_pipe();
  cgroup_ = "attempt_" + std::to_string(attempts_++);
  temporary_folder_ = plan.temporary_folder;
  ends_file_ = plan.ends_file;
  const Fd cgroup = context_.cgroup.add(cgroup_);
  memory_.emplace(cgroup ? context_.cgroup.folder(cgroup_)
                         : own_cgroup_folder().value_or(""),
                  own_cgroup_folder("memory").value_or(""));
  const Fd null(check(::open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null"));
  const WorkerContext shared{.inherited = inherited_,
                             .settings = context_.settings,
                             .consoles = context_.consoles,
                             .logs = context_.logs,
                             .output = *output_,
                             .filtered = filtered_,
                             .null_fd = null.get(),
                             .cgroup_fd = cgroup.get(),
                             .error_fd = errors.write.get()};
  if (plan.hang_timeout) {
    progress_.emplace(
        context_.loop,
        plan,
        [this] { return output_->is_held_up(); },
        [this](const Hang& hang) { context_.post(WorkersHang{hang}); });
  }
  if (!plan.timer_file.empty()) {
    timers_.emplace(
        context_.loop,
        plan.timer_file,
        [this](const TimerTable::Expired& timer) { on_timer(timer); });
  }
  make_attempt_folders(plan);
  // Prepare all workers before the first fork: after a fork, the kernel copies
  // each page that is written to.
  std::vector<PreparedWorker> prepared;
  prepared.reserve(plan.workers.size());
  for (WorkerSpec& spec : plan.workers) {
    prepared.push_back(prepare_worker(plan.path, std::move(spec), shared));
  }
  for (PreparedWorker& worker : prepared) {
    start_one(worker, shared);
  }
  // Do not block on the pipe: exec may take long if the program's file lies on
  // a file server that does not answer.
  exec_errors_ = std::move(errors.read);
  exec_watch_ = context_.loop.watch(
      exec_errors_.get(), EPOLLIN, [this] { on_exec_result(); });
}

void ProcessRunner::start_one(PreparedWorker& prepared,
                              const WorkerContext& shared) {
  workers_.push_back(start_worker(prepared, shared));
  Worker& worker = workers_.back();
  if (progress_) {
    progress_->watch(worker.spec.local_rank, worker.process.pid());
  }
  // Watch each process immediately, so that exits arrive in the kernel's order.
  // Without pidfds, simultaneous exits are ordered by rank.
  if (worker.process.pidfd() >= 0) {
    worker.exit_watch = context_.loop.watch(
        worker.process.pidfd(), EPOLLIN, [this, &worker] { on_exit(worker); });
  }
}

void ProcessRunner::on_exec_result() {
  const auto failure = read_exec_failure(exec_errors_);
  if (!failure) {
    end_start();
    return;
  }
  const LaunchError error = failure->of_binding
                                ? binding_failure(failure->error)
                                : exec_failure(path_, failure->error);
  abandon_start({error.exit_code(), error.what()});
}

void ProcessRunner::end_start() {
  context_.loop.unwatch(std::exchange(exec_watch_, 0));
  exec_errors_.reset();
  for (const WorkerExited& exit : std::exchange(early_exits_, {})) {
    context_.post(exit);
  }
}

void ProcessRunner::abandon_start(const StartFailed& failure) {
  for (Worker& worker : workers_) {
    worker.process.signal_group(SIGKILL);
    worker.process.reap();
  }
  forget();
  context_.post(failure);
}

}  // namespace launcher
