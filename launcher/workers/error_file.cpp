#include "launcher/workers/error_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "launcher/base/fd.h"

namespace launcher {
namespace {

using ErrorJson = nlohmann::ordered_json;

/// Returns a discarded value if the text is not JSON. Drops values that are
/// nested too deeply to be copied and written by recursion.
ErrorJson parsed(std::string_view json) {
  constexpr int kMostDepth = 100;
  const auto is_shallow = [](int depth, auto, const ErrorJson&) {
    return depth <= kMostDepth;
  };
  return ErrorJson::parse(
      json.begin(), json.end(), is_shallow, /*allow_exceptions=*/false);
}

std::string message_in(const ErrorJson& root) {
  if (!root.is_object() || !root.contains("message")) {
    return "";
  }
  const ErrorJson& message = root["message"];
  if (message.is_string()) {
    return message.get<std::string>();
  }
  if (message.is_object() && message.contains("message") &&
      message["message"].is_string()) {
    return message["message"].get<std::string>();
  }
  return "";
}

}  // namespace

std::string message_of_error_file(std::string_view json) {
  return message_in(parsed(json));
}

std::optional<std::string> handed_on(std::string_view json,
                                     const ExitStatus& status) {
  ErrorJson root = parsed(json);
  if (message_in(root).empty()) {
    return std::nullopt;
  }
  if (root["message"].is_object()) {
    root["message"]["errorCode"] = status.error_code();
  }
  return root.dump(-1, ' ', false, ErrorJson::error_handler_t::replace);
}

std::string read_error_file(const std::string& path) {
  constexpr off_t kMostBytes = 1 << 20;
  // A worker may have created any file type here: opening a FIFO would block,
  // and a symbolic link may lead anywhere.
  const Fd file(::open(
      path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size > kMostBytes) {
    return "";
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  const ssize_t size = retry_interrupted(
      [&] { return ::read(file.get(), text.data(), text.size()); });
  text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

}  // namespace launcher
