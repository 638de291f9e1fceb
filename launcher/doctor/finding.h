#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launcher/base/error.h"

namespace launcher {

enum class Severity {
  ok,
  warning,  ///< a job may run, worse than it could
  error,    ///< a job would fail
};

/// A thing that was looked at.
struct Finding {
  Severity severity = Severity::ok;
  std::string subject;  ///< "GPUs", "shared memory"
  std::string text;     ///< what is there, or what is wrong
  std::string fix;      ///< what to do; empty where all is well
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

/// An error that ddprun would end with: the fix is what follows its last "; ".
Finding failing(std::string subject, const std::string& error_text);

/// ddprun's exit code: 1 where there is an error.
int exit_code_of(const Findings& findings);

}  // namespace launcher
