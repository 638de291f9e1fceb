#include "launcher/process/worker.h"

#include <fcntl.h>
#include <unistd.h>

#include "launcher/output/run_directory.h"

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

}  // namespace

Worker start_worker(const std::string& path,
                    const WorkerSpec& spec,
                    const WorkerContext& context) {
  if (!spec.directory.empty()) {
    make_worker_folder(spec.directory, spec.file_mode);
  }
  Consoles& consoles = context.consoles;
  FilteredLogs& filtered = context.filtered;
  StreamTargets out_targets = targets_of(
      spec,
      spec.to_console.out ? &consoles.out() : nullptr,
      spec.to_file.out ? "stdout.log" : nullptr,
      spec.to_filtered.out && filtered.out ? &*filtered.out : nullptr,
      consoles.losses());
  StreamTargets err_targets = targets_of(
      spec,
      spec.to_console.err ? &consoles.err() : nullptr,
      spec.to_file.err ? "stderr.log" : nullptr,
      spec.to_filtered.err && filtered.err ? &*filtered.err : nullptr,
      consoles.losses());
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  const Fd null = open_null();
  Process process({.path = path,
                   .argv = spec.argv,
                   .environment = merge(context.environment, spec.environment),
                   .settings = &context.settings,
                   .cpus = spec.cpus,
                   .stdin_fd = spec.local_rank == 0 ? STDIN_FILENO : null.get(),
                   .stdout_fd = out.write.get(),
                   .stderr_fd = err.write.get(),
                   .error_fd = context.error_fd,
                   .cgroup_fd = context.cgroup_fd});
  context.output.add(std::move(out.read), std::move(out_targets));
  const WorkerStream& errors =
      context.output.add(std::move(err.read), std::move(err_targets));
  return {spec, std::move(process), &errors};
}

std::optional<ExecFailure> read_exec_failure(const Fd& errors) {
  ExecFailure failure{};
  const ssize_t size = retry_interrupted(
      [&] { return ::read(errors.get(), &failure, sizeof(failure)); });
  return size == sizeof(failure) ? std::optional(failure) : std::nullopt;
}

}  // namespace launcher
