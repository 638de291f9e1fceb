#include "launcher/doctor/job_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iterator>

#include "launcher/base/error.h"
#include "launcher/base/fd.h"
#include "launcher/base/shortened.h"
#include "launcher/job/launch.h"
#include "launcher/machine/host.h"

namespace launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostOutput = 64 << 20;
constexpr size_t kMostErrors = 1 << 20;

/// Runs the job in the child process.
[[noreturn]] void become_job(const LaunchOptions& options,
                             const Environment& environment,
                             const Pipe& out,
                             const Pipe& err) {
  // If the doctor dies, end the job: SIGTERM makes its ddprun stop the workers.
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
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

/// Reads one output stream of the job.
class Stream {
 public:
  Stream(Fd fd, size_t most) : fd_(std::move(fd)), most_(most) {}

  int fd() const { return fd_.get(); }
  bool is_open() const { return static_cast<bool>(fd_); }
  std::string& text() { return text_; }

  void read() {
    std::array<char, 16 * 1024> piece;
    const ssize_t size = retry_interrupted(
        [&] { return ::read(fd_.get(), piece.data(), piece.size()); });
    if (size <= 0) {
      fd_.reset();
    } else if (text_.size() < most_) {
      text_.append(piece.data(), static_cast<size_t>(size));
    }
  }

 private:
  Fd fd_;
  size_t most_;
  std::string text_;
};

/// Calls `on_line` for each whole line after `begin`, and returns the end of
/// the last one.
size_t hand_on(const std::string& text,
               size_t begin,
               const std::function<void(const std::string&)>& on_line) {
  for (size_t end = text.find('\n', begin); end != std::string::npos;
       end = text.find('\n', begin)) {
    if (on_line) {
      on_line(text.substr(begin, end - begin));
    }
    begin = end + 1;
  }
  return begin;
}

}  // namespace

JobOutput run_job(
    const LaunchOptions& options,
    const Environment& environment,
    std::chrono::milliseconds limit,
    const std::function<void(const std::string&)>& on_error_line) {
  Pipe out_pipe = make_pipe();
  Pipe err_pipe = make_pipe();
  std::fflush(nullptr);
  const pid_t child = check(::fork(), "fork");
  if (child == 0) {
    become_job(options, environment, out_pipe, err_pipe);
  }
  out_pipe.write.reset();
  err_pipe.write.reset();
  Stream out(std::move(out_pipe.read), kMostOutput);
  Stream err(std::move(err_pipe.read), kMostErrors);
  const Clock::time_point end = Clock::now() + limit;
  size_t handed_on = 0;
  while (out.is_open() || err.is_open()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) {
      // The supervisor of the child then ends the workers.
      ::kill(child, SIGKILL);
      break;
    }
    std::array<pollfd, 2> ready{pollfd{out.fd(), POLLIN, 0},
                                pollfd{err.fd(), POLLIN, 0}};
    retry_interrupted([&] {
      return ::poll(ready.data(), ready.size(), static_cast<int>(left.count()));
    });
    if (ready[0].revents != 0) {
      out.read();
    }
    if (ready[1].revents != 0) {
      err.read();
      handed_on = hand_on(err.text(), handed_on, on_error_line);
    }
  }
  retry_interrupted([&] { return ::waitpid(child, nullptr, 0); });
  return {std::move(out.text()), std::move(err.text())};
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
