#include "launcher/plan/job_token.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "launcher/base/error.h"
#include "launcher/base/fd.h"
#include "launcher/base/text.h"

namespace launcher {
namespace {

UsageError wrong_token_file(const std::string& path, const std::string& got) {
  return UsageError(
      "--rdzv-conf token_file: expected a file that holds the job's secret in "
      "one line of at most " +
      std::to_string(kLongestToken) + " characters, but " + path + " " + got +
      "; make one by `openssl rand -hex 16`, the same on all hosts");
}

/// Waits until the file is readable or at its end. Returns false at the
/// deadline.
bool comes(const Fd& file, std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  pollfd entry{file.get(), POLLIN, 0};
  return retry_interrupted([&] {
           return ::poll(
               &entry, 1, std::max(static_cast<int>(left.count()), 0));
         }) > 0;
}

/// Returns the beginning of the file, a little more than the longest token.
/// Throws if a pipe has not ended within `patience`.
std::string read_beginning(const std::string& path,
                           std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const Fd file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  std::array<char, 2 * kLongestToken> text;
  size_t length = 0;
  ssize_t size = file ? 1 : -1;
  while (size > 0 && length < text.size()) {
    if (!comes(file, deadline)) {
      throw wrong_token_file(
          path, "is a pipe that has not ended in " + patience_text(patience));
    }
    size = retry_interrupted([&] {
      return ::read(file.get(), text.data() + length, text.size() - length);
    });
    length += static_cast<size_t>(std::max<ssize_t>(size, 0));
  }
  if (size < 0) {
    throw wrong_token_file(
        path,
        "cannot be read (" + std::generic_category().message(errno) + ")");
  }
  return {text.data(), length};
}

std::string token_in(const std::string& path,
                     std::chrono::milliseconds patience) {
  constexpr const char* kSpaces = " \t\r\n";
  std::string text = read_beginning(path, patience);
  text.erase(text.find_last_not_of(kSpaces) + 1);
  text.erase(0, std::min(text.find_first_not_of(kSpaces), text.size()));
  if (text.empty()) {
    throw wrong_token_file(path, "is empty");
  }
  if (text.size() > kLongestToken) {
    throw wrong_token_file(path, "holds more");
  }
  if (!std::all_of(text.begin(), text.end(), [](char c) {
        return c >= ' ' && c <= '~';
      })) {
    throw wrong_token_file(path, "holds other bytes than printable ASCII");
  }
  return text;
}

}  // namespace

std::string job_token(const std::string& file,
                      const Environment& environment,
                      std::chrono::milliseconds patience) {
  if (!file.empty()) {
    return token_in(file, patience);
  }
  const std::string* token = find_variable(environment, "DDPRUN_TOKEN");
  return token != nullptr ? *token : "";
}

}  // namespace launcher
