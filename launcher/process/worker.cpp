#include "launcher/process/worker.h"

#include <fcntl.h>
#include <unistd.h>

#include "launcher/output/run_directory.h"
#include "launcher/process/exec_failure.h"

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

Worker start_worker(const std::string& path,
                    const WorkerSpec& spec,
                    const WorkerContext& context) {
  if (!spec.directory.empty()) {
    make_directories(spec.directory);
  }
  StreamTargets out_targets = targets_of(spec,
                                         context.consoles.out(),
                                         spec.to_console.out,
                                         spec.to_file.out,
                                         "stdout.log");
  StreamTargets err_targets = targets_of(spec,
                                         context.consoles.err(),
                                         spec.to_console.err,
                                         spec.to_file.err,
                                         "stderr.log");
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  const Fd null = open_null();
  Process process({.path = path,
                   .argv = spec.argv,
                   .environment = merge(context.environment, spec.environment),
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

// The pipe ends when nobody is left who could report.
void require_all_executed(const std::string& path, const Fd& errors) {
  ExecFailure failure{};
  const ssize_t size = retry_interrupted(
      [&] { return ::read(errors.get(), &failure, sizeof(failure)); });
  if (size == sizeof(failure)) {
    throw exec_failure(path, failure.error);
  }
}

}  // namespace launcher
