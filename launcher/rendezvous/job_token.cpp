#include "launcher/rendezvous/job_token.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "launcher/error.h"
#include "launcher/fd.h"
#include "launcher/rendezvous/message.h"

namespace launcher {
namespace {

UsageError wrong_token_file(const std::string& path, const std::string& got) {
  return UsageError(
      "--rdzv-conf token_file: expected a file that holds the job's secret in "
      "one line of at most " +
      std::to_string(kLongestToken) + " characters, but " + path + " " + got +
      "; make one by `openssl rand -hex 16`, the same on all hosts");
}

/// A little more than a token may have.
std::string beginning_of(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  std::array<char, 2 * kLongestToken> text;
  size_t length = 0;
  ssize_t size = file ? 1 : -1;
  while (size > 0 && length < text.size()) {
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

std::string token_in(const std::string& path) {
  constexpr const char* kSpaces = " \t\r\n";
  std::string text = beginning_of(path);
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

std::string job_token(const std::string& file, const Environment& environment) {
  if (!file.empty()) {
    return token_in(file);
  }
  const std::string* token = find_variable(environment, "DDPRUN_TOKEN");
  return token != nullptr ? *token : "";
}

}  // namespace launcher
