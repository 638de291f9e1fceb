#include "launcher/process/worker.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>

#include "launcher/output/run_directory.h"
#include "launcher/process/pseudo_terminal.h"

namespace launcher {
namespace {

StreamTargets targets_of(const WorkerSpec& spec,
                         Console* console,
                         const char* file_name,
                         FilteredLog* filtered,
                         Losses& losses) {
  StreamTargets targets{.console = console,
                        .prefix = spec.prefix,
                        .file = {},
                        .filtered = filtered};
  if (file_name != nullptr) {
    const std::string path = spec.directory + "/" + file_name;
    targets.file.emplace(create_log(path, spec.file_mode), path, losses);
  }
  return targets;
}

/// Where a line with its prefix just fits into ddprun's own terminal.
winsize size_for(const WorkerSpec& spec) {
  const bool has_prefix = spec.to_console.out || spec.to_console.err;
  return terminal_size(
      own_terminal_size(),
      has_prefix ? spec.prefix.at(std::chrono::system_clock::now()).size() : 0);
}

/// A worker's stdout or stderr.
struct WorkerEnd {
  Pipe pipe;  // none where the worker has ddprun's own
  StreamTargets targets;

  bool is_own() const { return !pipe.write; }
};

WorkerEnd make_end(const WorkerSpec& spec, StreamTargets targets) {
  const bool is_only_shown = targets.console != nullptr && !targets.file;
  if (spec.output == Output::inherit && is_only_shown) {
    return {{}, std::move(targets)};
  }
  return {spec.output == Output::pty ? make_pseudo_terminal(size_for(spec))
                                     : make_pipe(),
          std::move(targets)};
}

const WorkerStream* add_to(WorkerOutput& output, WorkerEnd& end) {
  return end.is_own()
             ? nullptr
             : &output.add(std::move(end.pipe.read), std::move(end.targets));
}

}  // namespace

PreparedWorker prepare_worker(const std::string& path,
                              WorkerSpec spec,
                              const WorkerContext& context) {
  if (!spec.directory.empty()) {
    make_worker_folder(spec.directory, spec.file_mode);
  }
  Consoles& consoles = context.consoles;
  FilteredLogs& filtered = context.filtered;
  WorkerEnd out =
      make_end(spec,
               targets_of(spec,
                          spec.to_console.out ? &consoles.out() : nullptr,
                          spec.to_file.out ? "stdout.log" : nullptr,
                          spec.to_filtered.out && filtered.out ? &*filtered.out
                                                               : nullptr,
                          consoles.losses()));
  WorkerEnd err =
      make_end(spec,
               targets_of(spec,
                          spec.to_console.err ? &consoles.err() : nullptr,
                          spec.to_file.err ? "stderr.log" : nullptr,
                          spec.to_filtered.err && filtered.err ? &*filtered.err
                                                               : nullptr,
                          consoles.losses()));
  auto execution = std::make_unique<const Execution>(path,
                                                     std::move(spec.argv),
                                                     context.inherited,
                                                     spec.environment,
                                                     spec.cpus);
  const WorkerStream* output = add_to(context.output, out);
  const WorkerStream* errors = add_to(context.output, err);
  return {std::move(spec),
          std::move(execution),
          std::move(out.pipe.write),
          std::move(err.pipe.write),
          output,
          errors};
}

Worker start_worker(PreparedWorker& worker, const WorkerContext& context) {
  Process process(
      {.execution = worker.execution.get(),
       .settings = &context.settings,
       .stdin_fd = worker.spec.has_stdin ? STDIN_FILENO : context.null_fd,
       .stdout_fd = worker.out ? worker.out.get() : STDOUT_FILENO,
       .stderr_fd = worker.err ? worker.err.get() : STDERR_FILENO,
       .error_fd = context.error_fd,
       .cgroup_fd = context.cgroup_fd});
  worker.out.reset();
  worker.err.reset();
  return {
      std::move(worker.spec), std::move(process), worker.output, worker.errors};
}

void signal_worker(const Worker& worker, int number) {
  if (number == SIGWINCH && worker.spec.output == Output::pty) {
    const winsize size = size_for(worker.spec);
    for (const WorkerStream* stream : {worker.output, worker.errors}) {
      ::ioctl(stream->fd(), TIOCSWINSZ, &size);
    }
  }
  worker.process.signal_group(number);
}

std::vector<std::string> last_error_lines(const Worker& worker) {
  return worker.errors != nullptr ? worker.errors->last_lines()
                                  : std::vector<std::string>();
}

Survivor survivor_of(const Worker& worker) {
  const pid_t pid = worker.process.pid();
  const bool is_forbidden = ::kill(pid, 0) != 0 && errno == EPERM;
  return {worker.spec.rank, pid, is_forbidden};
}

std::optional<ExecFailure> read_exec_failure(const Fd& errors) {
  ExecFailure failure{};
  const ssize_t size = retry_interrupted(
      [&] { return ::read(errors.get(), &failure, sizeof(failure)); });
  return size == sizeof(failure) ? std::optional(failure) : std::nullopt;
}

}  // namespace launcher
