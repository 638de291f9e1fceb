#include "launcher/machine/command.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <sstream>

#include "launcher/machine/process.h"

namespace launcher {
namespace {

constexpr size_t kMostKept = 64 * 1024;
constexpr int kNoStatus = -1;

/// Returns false if no data is available now, or at end of file.
bool read_piece(const Fd& pipe, std::string& text) {
  std::array<char, 4096> piece;
  const ssize_t size = retry_interrupted(
      [&] { return ::read(pipe.get(), piece.data(), piece.size()); });
  if (size > 0) {
    text.append(piece.data(), static_cast<size_t>(size));
    text.erase(0, text.size() - std::min(text.size(), kMostKept));
  }
  return size > 0;
}

/// Waits for the end of the process, which its descendants may outlive with the
/// pipe open. Returns std::nullopt after the limit.
std::optional<ExitStatus> await_end(const Process& process,
                                    const Fd& pipe,
                                    std::chrono::milliseconds limit,
                                    std::string& output) {
  using Clock = std::chrono::steady_clock;
  // Poll interval without a pidfd.
  constexpr std::chrono::milliseconds kLook{50};
  const auto end = Clock::now() + limit;
  std::optional<ExitStatus> status;
  for (bool is_open = true; !(status = process.peek());) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) {
      return {};
    }
    std::array<pollfd, 2> ready{pollfd{is_open ? pipe.get() : -1, POLLIN, 0},
                                pollfd{process.pidfd(), POLLIN, 0}};
    const auto wait = process.pidfd() >= 0 ? left : std::min(left, kLook);
    ::poll(ready.data(), ready.size(), static_cast<int>(wait.count()));
    is_open = ready[0].revents == 0 ? is_open : read_piece(pipe, output);
  }
  return status;
}

}  // namespace

CommandEnd run_command(const std::string& command,
                       const Environment& environment,
                       const CallerSettings& settings,
                       std::chrono::milliseconds limit) {
  const Fd input(check(::open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null"));
  Pipe pipe = make_pipe();
  const InheritedVariables inherited(environment);
  const Execution execution(
      "/bin/sh", {"sh", "-c", command}, inherited, {}, {});
  Process process({.execution = &execution,
                   .settings = &settings,
                   .stdin_fd = input.get(),
                   .stdout_fd = pipe.write.get(),
                   .stderr_fd = pipe.write.get(),
                   .error_fd = pipe.write.get()});
  pipe.write.reset();
  CommandEnd end;
  end.status = await_end(process, pipe.read, limit, end.output);
  process.signal_group(SIGKILL);
  process.reap();
  check(::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK), "fcntl");
  while (read_piece(pipe.read, end.output)) {
  }
  return end;
}

std::string encode(const CommandEnd& end) {
  const ExitStatus status = end.status.value_or(ExitStatus{kNoStatus, 0});
  return std::to_string(status.code) + " " + std::to_string(status.signal) +
         "\n" + end.output;
}

std::optional<CommandEnd> decode_command_end(const std::string& text) {
  std::istringstream head(text.substr(0, text.find('\n')));
  ExitStatus status;
  if (!(head >> status.code >> status.signal)) {
    return {};
  }
  CommandEnd end;
  if (status.code != kNoStatus) {
    end.status = status;
  }
  end.output = text.substr(text.find('\n') + 1);
  return end;
}

}  // namespace launcher
