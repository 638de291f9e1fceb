#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "launcher/base/error.h"

namespace launcher {

enum class Severity {
  ok,
  warning,  ///< a job may run, with lower performance
  error,    ///< a job would fail
};

/// Result of one check.
struct Finding {
  Severity severity = Severity::ok;
  std::string subject;  ///< "GPUs", "shared memory"
  std::string text;     ///< state, or problem
  std::string fix;      ///< advice; empty if all is well
};

using Findings = std::vector<Finding>;

inline Finding all_well(std::string subject, std::string text) {
  return {Severity::ok, std::move(subject), std::move(text), ""};
}

inline Finding warning(std::string subject, std::string text, std::string fix) {
  return {
      Severity::warning, std::move(subject), std::move(text), std::move(fix)};
}

inline Finding failing(std::string subject, std::string text, std::string fix) {
  return {Severity::error, std::move(subject), std::move(text), std::move(fix)};
}

/// Converts an error message of ddprun: the text after its last "; " is the
/// fix.
Finding failing(std::string subject, const std::string& error_text);

/// Returns ddprun's exit code: 1 if there is an error.
int exit_code_of(const Findings& findings);

/// Formats bytes: "64 MiB", "1.5 GiB".
std::string bytes_text(int64_t bytes);

/// Formats a number with one decimal: "2.7".
std::string decimal_text(double number);

/// Formats CUDA's version numbers: 12080 is "12.8".
std::string cuda_text(int version);

/// Formats NCCL's version numbers: 22809 is "2.28.9".
std::string nccl_text(int version);

/// Formats a list: "a, b and c".
std::string list_text(const std::vector<std::string>& items);

}  // namespace launcher
