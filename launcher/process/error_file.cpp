#include "launcher/process/error_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "launcher/fd.h"

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
  constexpr off_t kMostBytes = 1 << 20;
  // A worker may have left anything there: opening a FIFO would wait for its
  // writer, and a link may lead anywhere.
  const Fd file(::open(
      path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size > kMostBytes) {
    return "";
  }
  std::string json(static_cast<size_t>(status.st_size), '\0');
  const ssize_t size = retry_interrupted(
      [&] { return ::read(file.get(), json.data(), json.size()); });
  if (size <= 0) {
    return "";
  }
  json.resize(static_cast<size_t>(size));
  return message_of_error_file(json);
}

}  // namespace launcher
