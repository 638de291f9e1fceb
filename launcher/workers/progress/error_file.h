#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/base/exit_status.h"

namespace launcher {

/// What a worker wrote into its TORCHELASTIC_ERROR_FILE. What is missing, huge
/// or no file of its own (a FIFO, a link) is empty; it does not wait for one.
std::string read_error_file(const std::string& path);

/// The message in the text of an error file, as torch's `record` and
/// `ddp::record_errors` write them: `{"message": "text"}` or
/// `{"message": {"message": "text", ...}}`. Empty when there is none.
std::string message_of_error_file(std::string_view json);

/// An error file as a launcher hands it on to the one that started it: with
/// how the worker ended as `message.errorCode`, negative of a signal. Where the
/// message is a plain text there is no place for it, and it stays as it is.
/// Nothing when it has no message.
std::optional<std::string> handed_on(std::string_view json,
                                     const ExitStatus& status);

}  // namespace launcher
