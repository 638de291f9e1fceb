#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The file that TORCHELASTIC_ERROR_FILE names: what ended a process, for the
// launcher that started it. Includes no LibTorch: ddprun writes one, too.
namespace ddp::detail {

/// Bytes of an error file of ours, at most.
inline constexpr size_t kMostErrorFileBytes = 64 * 1024;

/// What an error file says.
struct ErrorRecord {
  std::string message;           ///< "ValueError: no data"
  std::string callstack;         ///< or what else tells where it came from
  int64_t time = 0;              ///< seconds since 1970
  std::optional<int> exit_code;  ///< negative: a signal. Launchers know it
};

/// Pure: the record in torchrun's format. Long texts are cut.
///
/// Example:
/// @code
///   {"message":{"message":"ValueError: no data","extraInfo":{
///    "py_callstack":"...","timestamp":"1700000000"},"errorCode":3}}
/// @endcode
std::string to_json(const ErrorRecord& record);

/// Replaces an error file in one step: who reads it finds all of it, or the old
/// one. Where something is that is no regular file (a link, a FIFO, a folder),
/// nothing is written; a device, as /dev/null, takes it silently.
///
/// @returns 0, or the errno of what failed
int write_error_file(const std::string& path, std::string_view json) noexcept;

}  // namespace ddp::detail
