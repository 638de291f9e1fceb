#include "launcher/doctor/port_holder.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <vector>

#include "launcher/base/text_file.h"

namespace launcher {
namespace {

namespace fs = std::filesystem;

bool has_socket(const fs::path& process, const std::string& link) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(process / "fd", error)) {
    if (fs::read_symlink(entry.path(), error) == link) {
      return true;
    }
  }
  return false;
}

std::string process_with(const std::string& inode) {
  const std::string link = "socket:[" + inode + "]";
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos ||
        !has_socket(entry.path(), link)) {
      continue;
    }
    const std::string name = read_text(entry.path() / "comm");
    return name.substr(0, name.find('\n')) + " (pid " + pid + ")";
  }
  return "";
}

}  // namespace

std::optional<std::string> listening_inode(std::string_view table, int port) {
  // Fields: number local remote state queues timer retransmits uid timeout
  // inode ...
  constexpr const char* kListens = "0A";
  std::array<char, 8> wanted{};
  std::snprintf(wanted.data(), wanted.size(), ":%04X", port);
  std::istringstream lines{std::string(table)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    const std::vector<std::string> words{
        std::istream_iterator<std::string>(fields), {}};
    if (words.size() > 9 && words[3] == kListens &&
        words[1].substr(words[1].find(':')) == wanted.data()) {
      return words[9];
    }
  }
  return std::nullopt;
}

std::string port_holder(int port) {
  for (const char* table : {"/proc/net/tcp6", "/proc/net/tcp"}) {
    if (const auto inode = listening_inode(read_text(table), port)) {
      return process_with(*inode);
    }
  }
  return "";
}

}  // namespace launcher
