#include "launcher/workers/worker.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>

#include "ddp/base/background_task.h"
#include "launcher/machine/pseudo_terminal.h"
#include "launcher/workers/error_file.h"

namespace launcher {
namespace {

constexpr std::chrono::seconds kTimeToRead{5};

/// Returns the terminal size at which a line plus its prefix just fits into
/// ddprun's own terminal.
winsize size_for(const WorkerSpec& spec) {
  const bool has_prefix = spec.to_console.out || spec.to_console.err;
  return terminal_size(own_terminal_size(),
                       has_prefix ? spec.prefix.size() : 0);
}

/// A worker's stdout or stderr.
struct WorkerEnd {
  Fd worker;  // none: inherits ddprun's own
  const WorkerStream* stream = nullptr;
};

/// Makes a pseudo-terminal for lines that are only shown on a terminal, as if a
/// shell had started the worker; otherwise, or if there is none, a pipe.
Pipe make_ends(const WorkerSpec& spec, const Console* console, bool has_file) {
  Pipe ends;
  if (!has_file && console != nullptr && console->is_terminal()) {
    ends = make_pseudo_terminal(size_for(spec));
  }
  return ends.read ? std::move(ends) : make_pipe();
}

WorkerEnd make_end(const WorkerSpec& spec,
                   bool StreamSet::*which,
                   LogFile file,
                   Console& console,
                   std::optional<FilteredLog>& filtered,
                   const WorkerContext& context) {
  const bool has_file = static_cast<bool>(file.fd);
  StreamTargets targets{
      .console = spec.to_console.*which ? &console : nullptr,
      .prefix = spec.prefix,
      .file = {},
      .filtered = spec.to_filtered.*which && filtered ? &*filtered : nullptr,
      .file_path = file.path,
      .keeps_last_lines = which == &StreamSet::err};
  const bool is_shown = targets.console != nullptr;
  if (spec.output == Output::inherit && is_shown && !has_file) {
    return {};
  }
  // The worker writes to the file directly, so no reader can block it.
  if (has_file && !is_shown && targets.filtered == nullptr) {
    return {.worker = std::move(file.fd)};
  }
  Pipe pipe = make_ends(spec, targets.console, has_file);
  if (has_file) {
    targets.file.emplace(std::move(file.fd), file.path, context.logs);
  }
  return {
      .worker = std::move(pipe.write),
      .stream = &context.output.add(std::move(pipe.read), std::move(targets))};
}

}  // namespace

PreparedWorker prepare_worker(const std::string& path,
                              WorkerSpec spec,
                              AttemptFiles::OfWorker files,
                              const WorkerContext& context) {
  WorkerEnd out = make_end(spec,
                           &StreamSet::out,
                           std::move(files.out),
                           context.consoles.out(),
                           context.filtered.out,
                           context);
  WorkerEnd err = make_end(spec,
                           &StreamSet::err,
                           std::move(files.err),
                           context.consoles.err(),
                           context.filtered.err,
                           context);
  auto execution = std::make_unique<const Execution>(path,
                                                     std::move(spec.argv),
                                                     context.inherited,
                                                     spec.environment,
                                                     spec.cpus);
  return {std::move(spec),
          std::move(execution),
          std::move(out.worker),
          std::move(err.worker),
          out.stream,
          err.stream};
}

Worker start_worker(PreparedWorker& worker, const WorkerContext& context) {
  Process process(
      {.execution = worker.execution.get(),
       .settings = &context.settings,
       .stdin_fd = worker.spec.has_stdin ? STDIN_FILENO : context.null_fd,
       .stdout_fd = worker.out ? worker.out.get() : STDOUT_FILENO,
       .stderr_fd = worker.err ? worker.err.get() : STDERR_FILENO,
       .error_fd = context.error_fd,
       .cgroup_fd = context.cgroup_fd,
       .watcher_fd = context.watcher_fd});
  worker.out.reset();
  worker.err.reset();
  return {
      std::move(worker.spec), std::move(process), worker.output, worker.errors};
}

void signal_worker(const Worker& worker, int number) {
  if (number == SIGWINCH) {
    const winsize size = size_for(worker.spec);
    for (const WorkerStream* stream : {worker.output, worker.errors}) {
      if (stream != nullptr) {
        ::ioctl(stream->fd(), TIOCSWINSZ, &size);  // fails for a pipe
      }
    }
  }
  worker.process.signal_group(number);
}

std::vector<LastWords> last_words(const std::vector<const Worker*>& workers) {
  struct Files {
    std::string log;
    std::string error;
  };
  std::vector<Files> files;
  for (const Worker* worker : workers) {
    const bool has_log = worker->errors == nullptr && worker->spec.to_file.err;
    files.push_back({has_log ? worker->spec.directory + "/" + kErrorLog : "",
                     worker->spec.error_file});
  }
  const auto found = std::make_shared<std::vector<LastWords>>();
  const auto read = [found, files] {
    for (const Files& file : files) {
      found->push_back(
          {last_lines_of_file(file.log), read_error_file(file.error)});
    }
  };
  ddp::detail::BackgroundTask reading;
  try {
    reading.start(read);
  } catch (const std::system_error&) {  // no thread can be made
    read();
  }
  std::vector<LastWords> words(workers.size());
  if (reading.finish(kTimeToRead)) {
    words = std::move(*found);
  }
  for (size_t index = 0; index < workers.size(); ++index) {
    if (workers[index]->errors != nullptr) {
      words[index].lines = workers[index]->errors->last_lines();
    }
  }
  return words;
}

}  // namespace launcher
