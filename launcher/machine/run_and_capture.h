#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/base/exit_status.h"
#include "launcher/base/fd.h"

namespace launcher {

/// The pipe from a child's stdout or stderr, and the text that came out of it.
struct CapturedStream {
  Fd pipe;  ///< its reading end
  size_t most_bytes = 1 << 20;
  std::string text{};
};

/// Reads the streams of a child until the child has ended, and what the pipes
/// hold then. Processes that the child has started may outlive the child; their
/// output after its end is not waited for.
///
/// @returns how the child ended; std::nullopt when it is still there after
///   `limit`. The caller reaps it in both cases.
std::optional<ExitStatus> capture_output(
    pid_t child,
    const std::vector<CapturedStream*>& streams,
    std::chrono::milliseconds limit);

/// A command for `run_and_capture`.
struct CaptureSpec {
  std::vector<std::string> argv;  ///< argv[0] is a path with a slash
  const Environment& environment;
  std::chrono::milliseconds limit;
  size_t most_bytes = 1 << 20;
  bool with_stderr = false;  ///< stdout and stderr as they come; else stdout
};

/// Arguments with which a shell looks a command up in PATH and becomes it. Exit
/// code 127: it is not there.
std::vector<std::string> found_in_path(std::vector<std::string> command);

/// How a command ended.
struct CommandEnd {
  std::optional<ExitStatus> status;  ///< std::nullopt: it ran past its limit
  std::string output;
};

/// Runs a command and waits for its end; after `limit` the command and its
/// process group get SIGKILL. A command that survives this is left behind after
/// a second. stdin is /dev/null. For a process that has nothing else to do.
///
/// @throws std::system_error when no process can be made
CommandEnd run_and_capture(const CaptureSpec& spec);

}  // namespace launcher
