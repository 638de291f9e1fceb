#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/base/exit_status.h"

namespace launcher {

/// Returns the contents of a worker's TORCHELASTIC_ERROR_FILE. Returns "" if
/// the file is missing, larger than 1 MiB or not a regular file (a FIFO, a
/// symbolic link). Does not block.
std::string read_error_file(const std::string& path);

/// Extracts the message from the text of an error file, as torch's `record` and
/// `ddp::record_errors` write it: `{"message": "text"}` or `{"message":
/// {"message": "text", ...}}`. Returns "" if there is no message.
std::string message_of_error_file(std::string_view json);

/// Returns the error file that a launcher passes on to its own parent launcher.
/// Adds the worker's exit status as `message.errorCode`, negative for a signal.
/// If the message is a plain string, the file has no place for the code and
/// stays unchanged. Returns std::nullopt if the file has no message.
std::optional<std::string> handed_on(std::string_view json,
                                     const ExitStatus& status);

}  // namespace launcher
