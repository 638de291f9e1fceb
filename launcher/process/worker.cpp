#include "launcher/process/worker.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>

#include "launcher/output/run_directory.h"
#include "launcher/process/pseudo_terminal.h"

namespace launcher {
namespace {

Fd open_null() {
  return Fd(check(::open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null"));
}

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

const WorkerStream* add_to(WorkerOutput& output, WorkerEnd end) {
  return end.is_own()
             ? nullptr
             : &output.add(std::move(end.pipe.read), std::move(end.targets));
}

}  // namespace

Worker start_worker(const std::string& path,
                    const WorkerSpec& spec,
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
  const Fd null = open_null();
  Process process(
      {.path = path,
       .argv = spec.argv,
       .environment = merge(context.environment, spec.environment),
       .settings = &context.settings,
       .cpus = spec.cpus,
       .stdin_fd = spec.has_stdin ? STDIN_FILENO : null.get(),
       .stdout_fd = out.is_own() ? STDOUT_FILENO : out.pipe.write.get(),
       .stderr_fd = err.is_own() ? STDERR_FILENO : err.pipe.write.get(),
       .error_fd = context.error_fd,
       .cgroup_fd = context.cgroup_fd});
  const WorkerStream* output = add_to(context.output, std::move(out));
  const WorkerStream* errors = add_to(context.output, std::move(err));
  return {spec, std::move(process), output, errors};
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
