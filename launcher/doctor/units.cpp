#include "launcher/doctor/units.h"

#include <array>
#include <cstdio>

namespace launcher {

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
