#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include "launcher/base/text.h"

namespace launcher {

/// Exit codes of ddprun itself. A job that ran ends with the exit code of the
/// worker that failed first, or 128 + its signal.
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNotExecutable = 126;  ///< as in shells
inline constexpr int kExitNotFound = 127;

/// Error that ends ddprun without a worker's failure. Holds one line for the
/// user (expected, got, remedy) and the exit code. Control characters in the
/// message are escaped, so that quoted text stays on one line.
class LaunchError : public std::runtime_error {
 public:
  LaunchError(int exit_code, const std::string& what)
      : std::runtime_error(on_one_line(what)), exit_code_(exit_code) {}

  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// Calls `work` and returns its exception as a LaunchError; std::nullopt: there
/// was none.
inline std::optional<LaunchError> error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const LaunchError& error) {
    return error;
  } catch (const std::exception& error) {
    return LaunchError(kExitFailure, error.what());
  }
  return std::nullopt;
}

/// LaunchError for a wrong command line.
class UsageError : public LaunchError {
 public:
  explicit UsageError(const std::string& what)
      : LaunchError(kExitUsage, what) {}
};

}  // namespace launcher
