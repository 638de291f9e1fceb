#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The file named by TORCHELASTIC_ERROR_FILE: the error that ended a process,
// for the launcher that started it. Includes no LibTorch: ddprun writes one,
// too.
namespace ddp::detail {

/// Maximum size of an error file that this library writes, in bytes.
inline constexpr size_t kMostErrorFileBytes = 64 * 1024;

/// Contents of an error file.
struct ErrorRecord {
  std::string message;           ///< "ValueError: no data"
  std::string callstack;         ///< or other text with its origin
  int64_t time = 0;              ///< seconds since 1970
  std::optional<int> exit_code;  ///< negative: a signal; set by launchers
};

/// Pure: converts the record to torchrun's format. Long texts are cut.
///
/// Example:
/// @code
///   {"message":{"message":"ValueError: no data","extraInfo":{
///    "py_callstack":"...","timestamp":"1700000000"},"errorCode":3}}
/// @endcode
std::string to_json(const ErrorRecord& record);

/// Replaces an error file atomically: a reader finds the old or the new file.
/// If `path` is not a regular file (a link, a FIFO, a folder), nothing is
/// written and EEXIST is returned. A character device such as /dev/null counts
/// as success.
///
/// @returns 0, or the errno of the failure.
int write_error_file(const std::string& path, std::string_view json) noexcept;

}  // namespace ddp::detail
