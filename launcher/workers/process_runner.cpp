#include "launcher/workers/process_runner.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <thread>

#include "ddp/base/job_files/error_file.h"
#include "launcher/base/exit_status.h"
#include "launcher/base/text.h"
#include "launcher/machine/execution.h"
#include "launcher/machine/process_state.h"
#include "launcher/workers/output/run_directory.h"

namespace launcher {
namespace {

constexpr const char* kFailedStartTimer = "failed start";
constexpr std::chrono::seconds kTimeToDie{5};

/// Writes a request into the stop file that a worker has created (see
/// ddp/base/job_files/job_directory.h). Replaces the file atomically. Returns
/// false if the path is not a regular file.
bool write_stop_file(const std::string& file, const std::string& line) {
  struct stat status {};
  return ::lstat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ddp::detail::write_error_file(file, line) == 0;
}

/// Pauses for 1 ms if there are more workers than CPUs. Otherwise ddprun's
/// handling of the first exits would compete for CPUs with workers that have
/// yet to handle their signal.
void yield_to_signalled_workers(int workers, int cpu_count) {
  if (workers > cpu_count) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Describes a worker that SIGKILL did not end.
Survivor survivor_of(const Worker& worker) {
  const pid_t pid = worker.process.pid();
  const bool is_forbidden = ::kill(pid, 0) != 0 && errno == EPERM;
  return {worker.spec.rank, pid, is_forbidden};
}

/// Reads the error pipe, of which the workers hold the write ends, and returns
/// the first failure. Returns std::nullopt at end of file: every worker has
/// executed its program.
std::optional<ExecFailure> read_exec_failure(const Fd& errors) {
  ExecFailure failure{};
  const ssize_t size = retry_interrupted(
      [&] { return ::read(errors.get(), &failure, sizeof(failure)); });
  return size == sizeof(failure) ? std::optional(failure) : std::nullopt;
}

/// Returns ", sh (pid 12), sleep (pid 13)".
std::string names_of_tree(pid_t root, const Children& children) {
  std::string text =
      ", " + name_of(root) + " (pid " + std::to_string(root) + ")";
  const auto [begin, end] = children.equal_range(root);
  for (auto child = begin; child != end; ++child) {
    text += names_of_tree(child->second, children);
  }
  return text;
}

}  // namespace

ProcessRunner::~ProcessRunner() {
  forget();
  kill_strays();
  remove_leftovers();
}

void ProcessRunner::start(LaunchPlan plan) {
  is_active_ = true;
  output_.emplace(context_.loop);
  path_ = plan.path;
  starting_ = std::make_shared<Start>(Start{.plan = std::move(plan)});
  context_.logs.run(
      [start = starting_] {
        start->error =
            error_of([&] { start->files = make_attempt_files(start->plan); });
      },
      [this, start = starting_] { on_files_made(start); });
}

void ProcessRunner::on_files_made(const std::shared_ptr<Start>& start) {
  if (starting_ != start) {
    return;  // the start has been ended
  }
  starting_.reset();
  started_ = std::chrono::steady_clock::now();
  try {
    if (start->error) {
      throw LaunchError(*start->error);
    }
    start_all(*start);
  } catch (const LaunchError& error) {
    abandon_start({error.exit_code(), error.what()});
  } catch (const std::system_error& error) {
    abandon_start({kExitFailure,
                   "the workers cannot be started (" +
                       std::string(error.what()) +
                       "); check ulimit -a, or start fewer"});
  }
}

void ProcessRunner::start_all(Start& start) {
  LaunchPlan& plan = start.plan;
  filtered_ = make_filtered_logs(plan, start.files, context_.logs);
  Pipe errors = make_pipe();
  cgroup_ = "attempt_" + std::to_string(attempts_++);
  temporary_folder_ = plan.temporary_folder;
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
                             .error_fd = errors.write.get(),
                             .watcher_fd = context_.watcher.fd()};
  if (plan.hang_timeout) {
    progress_.emplace(
        context_.loop,
        plan,
        [this] { return output_->is_held_up(); },
        [this](const Hang& hang) { context_.post(WorkersHang{hang}); });
  }
  // Prepare all workers before the first fork: after a fork, the kernel copies
  // each page that is written to.
  std::vector<PreparedWorker> prepared;
  prepared.reserve(plan.workers.size());
  for (size_t index = 0; index < plan.workers.size(); ++index) {
    WorkerSpec& spec = plan.workers[index];
    ::unlink(spec.stop_file.c_str());  // of an earlier attempt
    prepared.push_back(prepare_worker(plan.path,
                                      std::move(spec),
                                      std::move(start.files.workers[index]),
                                      shared));
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
  failure_.reset();  // workers that were killed for it just end
  context_.loop.disarm_timer(kFailedStartTimer);
  if (exec_watch_ != 0) {
    context_.loop.unwatch(std::exchange(exec_watch_, 0));
    context_.post(WorkersStarted{});
  }
  exec_errors_.reset();
  for (const WorkerExited& exit : std::exchange(early_exits_, {})) {
    context_.post(exit);
  }
  remove_leftovers();
}

void ProcessRunner::abandon_start(const StartFailed& failure) {
  context_.loop.unwatch(std::exchange(exec_watch_, 0));
  exec_errors_.reset();
  failure_ = failure;
  for (Worker& worker : workers_) {
    worker.process.signal_group(SIGKILL);
  }
  if (!has_running()) {
    post_failed_start();
    return;
  }
  // The kernel may hold a worker in exec. Then the worker is a stray.
  context_.loop.arm_timer(
      kFailedStartTimer, kTimeToDie, [this] { post_failed_start(); });
}

void ProcessRunner::post_failed_start() {
  for (Worker& worker : workers_) {
    if (worker.has_exited) {
      worker.process.reap();
    }
  }
  const StartFailed failure = failure_.value();
  forget();
  context_.post(failure);
}

bool ProcessRunner::has_running() const {
  return std::any_of(workers_.begin(),
                     workers_.end(),
                     [](const Worker& worker) { return !worker.has_exited; });
}

void ProcessRunner::on_exit(Worker& worker) {
  const auto status = worker.process.peek();
  if (!status || std::exchange(worker.has_exited, true)) {
    return;
  }
  context_.loop.unwatch(std::exchange(worker.exit_watch, 0));
  if (progress_) {
    progress_->forget(worker.spec.local_rank);
  }
  WorkerExit exit;
  exit.rank = worker.spec.rank;
  exit.local_rank = worker.spec.local_rank;
  exit.pid = worker.process.pid();
  exit.status = *status;
  exit.asked_by = worker.asked_by;
  exit.after = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - started_);
  exits_.push_back(exit);
  const WorkerExited event{exit.local_rank, *status};
  if (exec_watch_ == 0 && !failure_) {
    context_.post(event);
    return;
  }
  early_exits_.push_back(event);
  if (failure_ && !has_running()) {
    post_failed_start();
  }
}

void ProcessRunner::end_start_without_files() {
  if (starting_) {
    starting_.reset();
    post_what_is_left();
  }
}

int ProcessRunner::request_stop(int number, std::chrono::milliseconds time) {
  end_start_without_files();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time).count();
  const std::string line = "signal=" + signal_name(number) +
                           " seconds=" + std::to_string(seconds) + "\n";
  const Children children = all_children();
  int told = 0;
  for (Worker& worker : workers_) {
    if (!worker.has_exited && write_stop_file(worker.spec.stop_file, line)) {
      ++told;
    } else if (worker.process.has_group() &&
               !signal_receivers(worker.process.pid(), children, number) &&
               !worker.has_exited) {
      worker.process.signal_group(number);
    }
  }
  return told;
}

void ProcessRunner::signal_all(int number, Purpose purpose) {
  if (purpose == Purpose::end) {
    end_start();  // start order and progress no longer matter
    progress_.reset();
    end_start_without_files();
  } else if (progress_ && number == SIGSTOP) {
    progress_->pause();
  } else if (progress_ && number == SIGCONT) {
    progress_->resume();
  }
  int newly_asked = 0;
  for (Worker& worker : workers_) {
    const bool lives =
        !worker.process.is_reaped() && !worker.process.peek().has_value();
    if (purpose == Purpose::end && worker.asked_by == 0) {
      // A stopped process does not handle signals. Send SIGCONT only before the
      // first signal: a worker that is ending may be traced (as by
      // LeakSanitizer), and SIGCONT would undo the stop that its tracer waits
      // for.
      worker.process.signal_group(SIGCONT);
    }
    if (lives && purpose == Purpose::end) {
      newly_asked += worker.asked_by == 0 ? 1 : 0;
      worker.asked_by = number;
    }
    signal_worker(worker, number);
  }
  if (number != SIGKILL) {
    yield_to_signalled_workers(newly_asked, context_.cpu_count);
  }
}

void ProcessRunner::kill(int local_rank, int number) {
  Worker& worker = worker_of(local_rank);
  if (!worker.process.is_reaped() && !worker.process.peek().has_value()) {
    worker.asked_by = number;
  }
  worker.process.signal_group(number);
}

void ProcessRunner::kill_all() {
  signal_all(SIGKILL, Purpose::end);
  context_.cgroup.kill();
  // A worker that SIGKILL does not end keeps ChildrenRemain from coming.
  kill_strays();
  post_what_is_left();
}

void ProcessRunner::release(int local_rank) {
  worker_of(local_rank).process.reap();
  // Orphans that ended after this worker have not been reaped yet, and no
  // further SIGCHLD will announce them.
  on_child_ended();
}

void ProcessRunner::on_child_ended() {
  for (Worker& worker : workers_) {
    if (worker.process.pidfd() < 0 && !worker.has_exited) {
      on_exit(worker);
    }
    if (workers_.empty()) {
      break;  // the last worker of a failed start
    }
  }
  context_.strays.reap([this](pid_t pid) { return has_owner(pid); });
  unwatch_empty_groups();
  post_what_is_left();
}

void ProcessRunner::post_what_is_left() {
  const bool has_worker =
      std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
        return !worker.process.is_reaped();
      });
  if (!is_active_ || has_worker) {
    return;
  }
  context_.post(context_.strays.any() ? WorkersEvent(ChildrenRemain{})
                                      : WorkersEvent(AllAreGone{}));
}

void ProcessRunner::unwatch_empty_groups() {
  for (Worker& worker : workers_) {
    if (worker.is_watched && !worker.process.has_group()) {
      worker.is_watched = false;
      context_.watcher.remove(worker.process.pid());
    }
  }
}

std::string ProcessRunner::names_of_left() const {
  constexpr size_t kMostText = 500;
  const Children children = all_children();
  std::string text;
  for (const pid_t child : context_.strays.find()) {
    if (!has_owner(child)) {
      text += names_of_tree(child, children);
    }
  }
  return shortened(on_one_line(text.substr(std::min<size_t>(text.size(), 2))),
                   kMostText);
}

void ProcessRunner::terminate_strays() {
  for (const pid_t child : context_.strays.find()) {
    if (!has_owner(child) && !is_in_workers_group(child) &&
        asked_.insert(child).second) {
      signal_child(child, SIGCONT);
      signal_child(child, SIGTERM);
    }
  }
}

void ProcessRunner::kill_strays() {
  for (const pid_t child : context_.strays.find()) {
    if (!has_owner(child)) {
      signal_child(child, SIGKILL);
    }
  }
}

std::vector<WorkerState> ProcessRunner::states() const {
  std::vector<WorkerState> states;
  for (const Worker& worker : workers_) {
    WorkerState state{.rank = worker.spec.rank,
                      .local_rank = worker.spec.local_rank,
                      .pid = worker.process.pid(),
                      .asked_by = worker.asked_by};
    for (const WorkerExit& exit : exits_) {
      if (exit.local_rank == state.local_rank) {
        state.end = exit.status;
      }
    }
    states.push_back(state);
  }
  return states;
}

WorkersResult ProcessRunner::finish() {
  WorkersResult result;
  if (output_) {
    output_->finish();
  }
  filtered_.finish();
  std::vector<const Worker*> ended;
  for (const Worker& worker : workers_) {
    if (exit_of(worker) == exits_.end()) {
      result.survivors.push_back(survivor_of(worker));
    } else {
      ended.push_back(&worker);
    }
  }
  std::vector<LastWords> words = last_words(ended);
  for (size_t index = 0; index < ended.size(); ++index) {
    const auto exit = exit_of(*ended[index]);
    exit->last_lines = std::move(words[index].lines);
    exit->error = std::move(words[index].error);
  }
  result.exits = std::move(exits_);
  if (memory_) {
    result.oom_kills = memory_->kills();
    result.oom_cgroup = memory_->cgroup();
  }
  forget();
  is_active_ = false;
  remove_leftovers();
  leftovers_ = {cgroup_, temporary_folder_};
  return result;
}

void ProcessRunner::remove_leftovers() {
  const Leftovers leftovers = std::exchange(leftovers_, {});
  if (!leftovers.cgroup.empty()) {
    context_.cgroup.remove(leftovers.cgroup);
  }
  if (!leftovers.folder.empty()) {
    const auto remove = [folder = leftovers.folder] {
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);
    };
    context_.logs.run(remove, [] {});
  }
}

void ProcessRunner::forget() {
  starting_.reset();
  failure_.reset();
  context_.loop.disarm_timer(kFailedStartTimer);
  context_.loop.unwatch(std::exchange(exec_watch_, 0));
  exec_errors_.reset();
  early_exits_.clear();
  progress_.reset();
  for (Worker& worker : workers_) {
    context_.loop.unwatch(worker.exit_watch);
    worker.process.kill_all();
    if (worker.is_watched) {
      context_.watcher.remove(worker.process.pid());
    }
  }
  workers_.clear();
  exits_.clear();
  asked_.clear();
  memory_.reset();
  output_.reset();
  filtered_ = {};
}

Worker& ProcessRunner::worker_of(int local_rank) {
  return *std::find_if(
      workers_.begin(), workers_.end(), [local_rank](const Worker& worker) {
        return worker.spec.local_rank == local_rank;
      });
}

/// Returns the recorded exit of the worker, or the end of `exits_`.
std::vector<WorkerExit>::iterator ProcessRunner::exit_of(const Worker& worker) {
  return std::find_if(
      exits_.begin(), exits_.end(), [&](const WorkerExit& entry) {
        return entry.local_rank == worker.spec.local_rank;
      });
}

bool ProcessRunner::is_in_workers_group(pid_t pid) const {
  const pid_t group = ::getpgid(pid);
  return std::any_of(
      workers_.begin(), workers_.end(), [group](const Worker& worker) {
        return worker.process.pid() == group;
      });
}

bool ProcessRunner::has_owner(pid_t pid) const {
  return std::any_of(
      workers_.begin(), workers_.end(), [pid](const Worker& worker) {
        return worker.process.pid() == pid && !worker.process.is_reaped();
      });
}

}  // namespace launcher
