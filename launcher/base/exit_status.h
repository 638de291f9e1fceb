#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace launcher {

/// Returns "SIGTERM" for 15; "signal 40" for a number without a name.
std::string signal_name(int number);

/// Returns 15 for "SIGTERM" or "TERM"; 0 for an unknown name.
int signal_number(std::string_view name);

/// How a process ended: by exit(code) or by a signal.
struct ExitStatus {
  int code = 0;
  int signal = 0;  ///< 0: it exited by itself

  bool is_success() const { return code == 0 && signal == 0; }
  /// Returns the exit code that a shell would show: 128 + signal.
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
  /// Returns the exit code in the convention of torchrun and Python: -signal.
  int error_code() const { return signal != 0 ? -signal : code; }
  /// Returns "exit code 3" or "SIGSEGV".
  std::string text() const {
    return signal != 0 ? signal_name(signal)
                       : "exit code " + std::to_string(code);
  }
};

}  // namespace launcher
