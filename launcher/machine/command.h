#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "launcher/base/environment.h"
#include "launcher/base/exit_status.h"
#include "launcher/machine/caller_settings.h"

namespace launcher {

/// How a command of the shell ended.
struct CommandEnd {
  std::optional<ExitStatus> status;  ///< nothing: it ran past its limit
  std::string output;  ///< the end of its stdout and stderr, as they came
};

/// Runs `sh -c command` and waits for its end, at most for `limit`; then it and
/// its process group get SIGKILL. stdin is /dev/null. For a process that has
/// nothing else to do: see BackgroundCall.
///
/// @param settings that it does not inherit
/// @throws std::system_error when it cannot be started
CommandEnd run_command(const std::string& command,
                       const Environment& environment,
                       const CallerSettings& settings,
                       std::chrono::milliseconds limit);

/// As text, as one process hands it to another.
std::string encode(const CommandEnd& end);
/// Nothing for what is no such text.
std::optional<CommandEnd> decode_command_end(const std::string& text);

}  // namespace launcher
