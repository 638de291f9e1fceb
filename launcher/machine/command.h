#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/base/exit_status.h"

namespace launcher {

/// A program to run.
struct CommandSpec {
  std::vector<std::string>
      argv;  ///< argv[0] without a slash: looked up in PATH
  const Environment& environment;
  std::chrono::milliseconds limit;     ///< then it gets SIGTERM
  std::chrono::milliseconds grace{0};  ///< time from SIGTERM to SIGKILL
};

/// How a command ended.
struct CommandEnd {
  std::optional<ExitStatus> status;  ///< std::nullopt: it ran past its limit
  std::string output;                ///< stdout and stderr, at most 64 MiB
};

/// Runs a program and waits for it, with stdin from /dev/null. At its end, or
/// after its limit, the rest of its process group gets SIGKILL. Does not wait
/// for processes that have left the group, nor for a command that the kernel
/// holds for a second after SIGKILL. Exit code 127: it cannot be executed. To
/// be called from the main thread; see Process.
///
/// Example:
/// @code
///   run_command({.argv = {"nvidia-smi", "-L"},
///                .environment = environment,
///                .limit = 30s}).output;
/// @endcode
///
/// @throws std::system_error if no process can be created
CommandEnd run_command(const CommandSpec& spec);

}  // namespace launcher
