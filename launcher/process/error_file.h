#pragma once

#include <string>
#include <string_view>

namespace launcher {

/// What a worker wrote into its TORCHELASTIC_ERROR_FILE, as torch's `record`
/// does: `{"message": "text"}` or `{"message": {"message": "text", ...}}`.
/// Empty when there is no such text.
std::string message_of_error_file(std::string_view json);

/// The same, of a file. What is missing, huge or no file of its own (a FIFO, a
/// link) has no message; it does not wait for one.
std::string read_error_file(const std::string& path);

}  // namespace launcher
