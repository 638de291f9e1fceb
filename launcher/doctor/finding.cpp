#include "launcher/doctor/finding.h"

#include <algorithm>
#include <array>
#include <cstdio>

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

std::string decimal_text(double number) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.1f", number);
  return text.data();
}

std::string bytes_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{
      "bytes", "KiB", "MiB", "GiB", "TiB"};
  auto number = static_cast<double>(bytes);
  size_t unit = 0;
  while (number >= 1024 && unit + 1 < kUnits.size()) {
    number /= 1024;
    ++unit;
  }
  const auto whole = static_cast<int64_t>(number);
  return (static_cast<double>(whole) == number || number >= 100
              ? std::to_string(whole)
              : decimal_text(number)) +
         " " + kUnits[unit];
}

std::string cuda_text(int version) {
  return std::to_string(version / 1000) + "." +
         std::to_string(version % 1000 / 10);
}

std::string nccl_text(int version) {
  return std::to_string(version / 10000) + "." +
         std::to_string(version % 10000 / 100) + "." +
         std::to_string(version % 100);
}

std::string list_text(const std::vector<std::string>& items) {
  std::string text;
  for (size_t index = 0; index < items.size(); ++index) {
    text += index == 0 ? "" : index + 1 == items.size() ? " and " : ", ";
    text += items[index];
  }
  return text;
}

}  // namespace launcher
