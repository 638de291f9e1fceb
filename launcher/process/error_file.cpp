#include "launcher/process/error_file.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace launcher {

std::string message_of_error_file(std::string_view json) {
  const auto root = nlohmann::json::parse(
      json.begin(), json.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!root.is_object() || !root.contains("message")) {
    return "";
  }
  const auto& message = root["message"];
  if (message.is_string()) {
    return message.get<std::string>();
  }
  if (message.is_object() && message.contains("message") &&
      message["message"].is_string()) {
    return message["message"].get<std::string>();
  }
  return "";
}

std::string read_error_file(const std::string& path) {
  constexpr std::streamsize kMostBytes = 1 << 20;
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes(kMostBytes);
  file.read(bytes.data(), kMostBytes);
  if (file.gcount() <= 0 || file.gcount() == kMostBytes) {
    return "";
  }
  return message_of_error_file(
      {bytes.data(), static_cast<size_t>(file.gcount())});
}

}  // namespace launcher
