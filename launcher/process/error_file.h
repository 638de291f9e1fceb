#pragma once

#include <string>
#include <string_view>

namespace launcher {

/// What a worker wrote into its TORCHELASTIC_ERROR_FILE, as torch's `record`
/// does: `{"message": "text"}` or `{"message": {"message": "text", ...}}`.
/// Empty when there is no such text.
std::string message_of_error_file(std::string_view json);

/// The same, of a file; a missing or huge one has no message.
std::string read_error_file(const std::string& path);

}  // namespace launcher
