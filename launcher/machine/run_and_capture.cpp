#include "launcher/machine/run_and_capture.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

#include "ddp/base/child_process.h"
#include "launcher/machine/process.h"
#include "launcher/machine/strays.h"

namespace launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kTimeToDie{1'000};

/// Hands complete lines to `on_line` as the text grows.
class StreamReader {
 public:
  explicit StreamReader(CapturedStream& stream) : stream_(stream) {}

  /// -1 after the end of the stream.
  int fd() const { return stream_.pipe.get(); }

  /// Waits for a piece of the text, or for the end of the stream.
  void read() {
    std::array<char, 16 * 1024> piece;
    const ssize_t size = retry_interrupted(
        [&] { return ::read(stream_.pipe.get(), piece.data(), piece.size()); });
    if (size > 0) {
      append({piece.data(), static_cast<size_t>(size)});
    } else {
      stream_.pipe.reset();
    }
  }

  /// Reads the content of the pipe, without waiting for more: a process that
  /// the child has left behind may write without end.
  void drain() {
    constexpr int kMostPieces = 64;  // a pipe holds fewer, unless enlarged
    int left = 0;
    for (int piece = 0; piece < kMostPieces && stream_.pipe &&
                        ::ioctl(fd(), FIONREAD, &left) == 0 && left > 0;
         ++piece) {
      read();
    }
  }

 private:
  void append(std::string_view piece) {
    std::string& text = stream_.text;
    text += piece.substr(0, stream_.most_bytes - text.size());
  }

  CapturedStream& stream_;
};

}  // namespace

std::optional<ExitStatus> capture_output(
    pid_t child,
    const std::vector<CapturedStream*>& streams,
    milliseconds limit) {
  constexpr milliseconds kLook{50};  // without a pidfd
  const auto deadline = steady_clock::now() + limit;
  const Fd pidfd = ddp::detail::open_pidfd(child);
  std::vector<StreamReader> readers;
  for (CapturedStream* stream : streams) {
    readers.emplace_back(*stream);
  }
  std::optional<ExitStatus> status;
  while (!(status = peek_child(child))) {
    const auto left =
        std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    if (left.count() <= 0) {
      break;
    }
    std::vector<pollfd> ready{{pidfd.get(), POLLIN, 0}};
    for (const StreamReader& reader : readers) {
      ready.push_back({reader.fd(), POLLIN, 0});
    }
    const auto wait = pidfd ? left : std::min(left, kLook);
    if (::poll(ready.data(), ready.size(), static_cast<int>(wait.count())) <=
        0) {
      continue;
    }
    for (size_t i = 0; i < readers.size(); ++i) {
      if (ready[i + 1].revents != 0) {
        readers[i].read();
      }
    }
  }
  for (StreamReader& reader : readers) {
    reader.drain();
  }
  return status;
}

std::vector<std::string> found_in_path(std::vector<std::string> command) {
  const std::initializer_list<std::string> shell{
      "/bin/sh", "-c", "exec \"$@\"", "sh"};
  command.insert(command.begin(), shell);
  return command;
}

CommandEnd run_and_capture(const CaptureSpec& spec) {
  const Fd null(check(::open("/dev/null", O_RDWR | O_CLOEXEC), "/dev/null"));
  Pipe pipe = make_pipe();
  const InheritedVariables inherited(spec.environment);
  const Execution execution(spec.argv.front(), spec.argv, inherited, {}, {});
  Process process(
      {.execution = &execution,
       .stdin_fd = null.get(),
       .stdout_fd = pipe.write.get(),
       .stderr_fd = spec.with_stderr ? pipe.write.get() : null.get(),
       .error_fd = null.get()});
  pipe.write.reset();
  CapturedStream output{.pipe = std::move(pipe.read),
                        .most_bytes = spec.most_bytes};
  CommandEnd end;
  end.status = capture_output(process.pid(), {&output}, spec.limit);
  process.signal_group(SIGKILL);
  // The kernel may hold a killed process, and root's may not be killed.
  if (end.status || capture_output(process.pid(), {}, kTimeToDie)) {
    process.reap();
  }
  end.output = std::move(output.text);
  return end;
}

}  // namespace launcher
