#include "launcher/doctor/job_output.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iterator>

#include "ddp/base/child_process.h"
#include "launcher/base/error.h"
#include "launcher/base/fd.h"
#include "launcher/base/shortened.h"
#include "launcher/job/launch.h"
#include "launcher/machine/host.h"
#include "launcher/machine/run_and_capture.h"

namespace launcher {
namespace {

constexpr size_t kMostOutput = 64 << 20;
constexpr size_t kMostErrors = 1 << 20;
constexpr std::chrono::seconds kTimeToStop{20};

/// Runs the job in the child process.
[[noreturn]] void become_job(const LaunchOptions& options,
                             const Environment& environment,
                             const Pipe& out,
                             const Pipe& err) {
  const Fd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ::dup2(input.get(), STDIN_FILENO);
  ::dup2(out.write.get(), STDOUT_FILENO);
  ::dup2(err.write.get(), STDERR_FILENO);
  int code = kExitFailure;
  try {
    code = launch(make_job(options, probe_host(), environment, make_run_id()));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ddprun: %s\n", error.what());
  }
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

JobOutput run_job(const LaunchOptions& options,
                  const Environment& environment,
                  std::chrono::milliseconds limit) {
  Pipe out_pipe = make_pipe();
  Pipe err_pipe = make_pipe();
  std::fflush(nullptr);
  // If the doctor ends, the job's ddprun gets SIGTERM and stops the workers.
  const pid_t child = ddp::detail::fork_child({.death_signal = SIGTERM});
  if (child == 0) {
    become_job(options, environment, out_pipe, err_pipe);
  }
  out_pipe.write.reset();
  err_pipe.write.reset();
  CapturedStream out{.pipe = std::move(out_pipe.read),
                     .most_bytes = kMostOutput};
  CapturedStream err{.pipe = std::move(err_pipe.read),
                     .most_bytes = kMostErrors};
  const bool is_late = !capture_output(child, {&out, &err}, limit);
  if (is_late) {
    ::kill(child, SIGTERM);
    if (!capture_output(child, {&out, &err}, kTimeToStop)) {
      ::kill(child, SIGKILL);  // the job's watcher ends the workers
    }
  }
  retry_interrupted([&] { return ::waitpid(child, nullptr, 0); });
  return {std::move(out.text), std::move(err.text), is_late};
}

std::string own_path() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

Environment without_own_options(Environment environment) {
  for (auto entry = environment.begin(); entry != environment.end();) {
    entry = entry->first.rfind("PET_", 0) == 0 ? environment.erase(entry)
                                               : std::next(entry);
  }
  environment["LOGLEVEL"] = "WARNING";
  return environment;
}

std::string reason_in(const std::string& err) {
  constexpr size_t kMost = 500;
  constexpr std::string_view kOwn = "ddprun: ";
  const size_t loader = err.find("error while loading shared libraries");
  const size_t at = loader != std::string::npos ? loader : err.rfind(kOwn);
  if (at == std::string::npos) {
    return "";
  }
  const size_t begin = err.rfind('\n', at) + 1;  // npos + 1 is 0
  return shortened(err.substr(begin, err.find('\n', at) - begin), kMost);
}

}  // namespace launcher
