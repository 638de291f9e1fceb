#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "launcher/base/environment.h"
#include "launcher/base/exit_status.h"
#include "launcher/machine/caller_settings.h"

namespace launcher {

/// Result of a shell command.
struct CommandEnd {
  std::optional<ExitStatus> status;  ///< std::nullopt: exceeded its limit
  std::string output;                ///< end of its stdout and stderr, in order
};

/// Runs `sh -c command` and blocks until it has ended. After `limit`, sends
/// SIGKILL to the command and its process group. stdin is /dev/null. To be
/// called in a process without other duties, see BackgroundCall.
///
/// @param settings caller's settings, restored in the command
/// @throws std::system_error if the command cannot be started
CommandEnd run_command(const std::string& command,
                       const Environment& environment,
                       const CallerSettings& settings,
                       std::chrono::milliseconds limit);

/// Encodes a result as text, to be sent to another process.
std::string encode(const CommandEnd& end);
/// Decodes the text of encode(); returns std::nullopt for any other text.
std::optional<CommandEnd> decode_command_end(const std::string& text);

}  // namespace launcher
