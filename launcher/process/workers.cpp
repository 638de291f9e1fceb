#include "launcher/process/workers.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "launcher/error.h"
#include "launcher/output/run_directory.h"
#include "launcher/process/descendants.h"

namespace launcher {
namespace {

Fd open_null() {
  return Fd(check(::open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null"));
}

StreamTargets targets_of(const WorkerSpec& spec,
                         Console& console,
                         bool to_console,
                         bool to_file,
                         const std::string& file_name) {
  return {
      .console = to_console ? &console : nullptr,
      .prefix = spec.prefix,
      .file = to_file ? create_log(spec.directory + "/" + file_name) : Fd()};
}

}  // namespace

Workers::Workers(const LaunchPlan& plan, const Surroundings& around) {
  Pipe errors = make_pipe();
  try {
    for (const WorkerSpec& spec : plan.workers) {
      start(plan.path, spec, around, errors.write.get());
    }
    errors.write.reset();
    require_all_executed(plan.path, errors.read);
  } catch (const std::system_error& error) {
    end_now();
    throw LaunchError(kExitFailure,
                      "the workers cannot be started (" +
                          std::string(error.what()) +
                          "); check ulimit -a, or start fewer");
  } catch (...) {
    end_now();
    throw;
  }
}

Workers::~Workers() {
  signal_all(SIGKILL, /*asks_to_end=*/false);
}

void Workers::start(const std::string& path,
                    const WorkerSpec& spec,
                    const Surroundings& around,
                    int error_fd) {
  make_private_directories(spec.directory);
  StreamTargets out_targets = targets_of(spec,
                                         around.consoles.out(),
                                         spec.to_console.out,
                                         spec.to_file.out,
                                         "stdout.log");
  StreamTargets err_targets = targets_of(spec,
                                         around.consoles.err(),
                                         spec.to_console.err,
                                         spec.to_file.err,
                                         "stderr.log");
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  const Fd null = open_null();
  Process process({.path = path,
                   .argv = spec.argv,
                   .environment = merge(around.environment, spec.environment),
                   .stdin_fd = spec.local_rank == 0 ? STDIN_FILENO : null.get(),
                   .stdout_fd = out.write.get(),
                   .stderr_fd = err.write.get(),
                   .error_fd = error_fd,
                   .cgroup_fd = around.cgroup_fd});
  workers_.push_back({spec, std::move(process), nullptr});
  around.output.add(std::move(out.read), std::move(out_targets));
  workers_.back().errors =
      &around.output.add(std::move(err.read), std::move(err_targets));
}

// The pipe ends when every child has executed its program or given up.
void Workers::require_all_executed(const std::string& path, const Fd& errors) {
  ExecFailure failure{};
  const ssize_t size = retry_interrupted(
      [&] { return ::read(errors.get(), &failure, sizeof(failure)); });
  if (size != sizeof(failure)) {
    return;
  }
  const bool is_missing = failure.error == ENOENT;
  throw LaunchError(
      is_missing ? kExitNotFound : kExitNotExecutable,
      "program " + path + " cannot be executed (" +
          std::generic_category().message(failure.error) +
          (is_missing ? "); check that the interpreter it names exists"
                      : "); check that it was built for this machine"));
}

void Workers::end_now() {
  for (Worker& worker : workers_) {
    // Before its setsid() a child is in no group of its own.
    ::kill(worker.process.pid(), SIGKILL);
    worker.process.signal_group(SIGKILL);
    worker.process.reap();
  }
}

void Workers::signal_all(int number, bool asks_to_end) {
  for (Worker& worker : workers_) {
    const bool lives =
        !worker.process.is_reaped() && !worker.process.peek().has_value();
    if (lives && asks_to_end) {
      worker.asked_by = number;
    }
    worker.process.signal_group(number);
  }
}

bool Workers::has_unreaped(pid_t pid) const {
  return std::any_of(
      workers_.begin(), workers_.end(), [pid](const Worker& worker) {
        return worker.process.pid() == pid && !worker.process.is_reaped();
      });
}

bool Workers::are_all_reaped() const {
  return std::all_of(
      workers_.begin(), workers_.end(), [](const Worker& worker) {
        return worker.process.is_reaped();
      });
}

void Workers::sweep(Sweep what) const {
  for (const pid_t child : own_children()) {
    const pid_t group = ::getpgid(child);
    const bool is_in_group = std::any_of(
        workers_.begin(), workers_.end(), [group](const Worker& worker) {
          return worker.process.pid() == group;
        });
    const bool is_spared = is_in_group && what == Sweep::strays;
    if (!is_spared && !has_unreaped(child)) {
      ::kill(group == child ? -child : child, SIGKILL);
    }
  }
}

}  // namespace launcher
