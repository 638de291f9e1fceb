#include "launcher/machine/command.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "launcher/machine/process.h"

namespace launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTimeToDie{1'000};
constexpr int kBetweenChecks = 50;  // milliseconds
constexpr size_t kMostBytes = 64 << 20;

/// The shell looks the program up in PATH and becomes it.
std::vector<std::string> with_path(const std::vector<std::string>& argv) {
  std::vector<std::string> result = argv;
  if (argv.front().find('/') == std::string::npos) {
    const std::initializer_list<std::string> shell{
        kShell, "-c", "exec \"$@\"", "sh"};
    result.insert(result.begin(), shell);
  }
  return result;
}

/// Reads the bytes that come within `time`, in milliseconds. Returns whether
/// the pipe may have more.
bool read_piece(Fd& pipe, int time, std::string& output) {
  pollfd entry{pipe.get(), POLLIN, 0};
  if (::poll(&entry, 1, time) <= 0) {
    return false;
  }
  std::array<char, 16 * 1024> piece;
  const ssize_t size = ::read(pipe.get(), piece.data(), piece.size());
  if (size > 0) {
    output.append(
        piece.data(),
        std::min(static_cast<size_t>(size), kMostBytes - output.size()));
  } else if (size == 0) {
    pipe.reset();  // poll() ignores it from now on
  }
  return size > 0;
}

/// Reads the output until the process ends. Returns std::nullopt after `limit`.
std::optional<ExitStatus> await_end(const Process& process,
                                    Fd& pipe,
                                    milliseconds limit,
                                    std::string& output) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + limit;
  for (;;) {
    const auto status = process.peek();
    if (status || Clock::now() >= deadline) {
      return status;
    }
    read_piece(pipe, kBetweenChecks, output);
  }
}

}  // namespace

CommandEnd run_command(const CommandSpec& spec) {
  const Fd null(check(::open("/dev/null", O_RDWR | O_CLOEXEC), "/dev/null"));
  Pipe out = make_pipe();
  const auto argv = with_path(spec.argv);
  const InheritedVariables inherited(spec.environment);
  const Execution execution(argv.front(), argv, inherited, {}, {});
  Process process({.execution = &execution,
                   .stdin_fd = null.get(),
                   .stdout_fd = out.write.get(),
                   .stderr_fd = out.write.get(),
                   .error_fd = null.get()});
  out.write.reset();
  CommandEnd end;
  end.status = await_end(process, out.read, spec.limit, end.output);
  if (!end.status) {
    process.signal_group(SIGTERM);
    await_end(process, out.read, spec.grace, end.output);
  }
  process.signal_group(SIGKILL);  // also processes left in its group
  // The kernel may hold a killed process, and a process of root may not be
  // killed.
  if (await_end(process, out.read, kTimeToDie, end.output)) {
    process.reap();
  }
  // A process that the command has left behind may write without end.
  constexpr int kMostPieces = 64;  // a pipe holds fewer, unless enlarged
  for (int piece = 0;
       piece < kMostPieces && read_piece(out.read, 0, end.output);
       ++piece) {
  }
  return end;
}

}  // namespace launcher
