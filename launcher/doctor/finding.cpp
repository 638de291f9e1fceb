#include "launcher/doctor/finding.h"

#include <algorithm>

namespace launcher {

Finding failing(std::string subject, const std::string& error_text) {
  const size_t end = error_text.rfind("; ");
  return end == std::string::npos ? failing(std::move(subject), error_text, "")
                                  : failing(std::move(subject),
                                            error_text.substr(0, end),
                                            error_text.substr(end + 2));
}

int exit_code_of(const Findings& findings) {
  const bool fails =
      std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
        return finding.severity == Severity::error;
      });
  return fails ? kExitFailure : 0;
}

}  // namespace launcher
