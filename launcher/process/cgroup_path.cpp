#include "launcher/process/cgroup_path.h"

#include <iterator>
#include <sstream>
#include <vector>

#include "launcher/text_file.h"

namespace launcher {
namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

struct Mount {
  std::string root;
  std::string point;
};

// Fields: id parent dev root mountpoint options... - type source options
std::optional<Mount> find_cgroup2(std::string_view mountinfo) {
  std::istringstream lines{std::string(mountinfo)};
  for (std::string line; std::getline(lines, line);) {
    const size_t dash = line.find(" - cgroup2 ");
    if (dash != std::string::npos) {
      const auto words = words_of(line.substr(0, dash));
      if (words.size() >= 5) {
        return Mount{words[3], words[4]};
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> find_membership(std::string_view membership) {
  std::istringstream lines{std::string(membership)};
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("0::/", 0) == 0) {
      return line.substr(3);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> cgroup_folder(std::string_view mountinfo,
                                         std::string_view membership) {
  const auto mount = find_cgroup2(mountinfo);
  auto path = find_membership(membership);
  if (!mount || !path || path->find("/..") == 0) {
    return std::nullopt;
  }
  if (mount->root != "/") {
    // A container sees a part of the hierarchy.
    if (path->rfind(mount->root, 0) != 0) {
      return std::nullopt;
    }
    *path = path->substr(mount->root.size());
  }
  return mount->point + (*path == "/" ? "" : *path);
}

std::optional<std::string> own_cgroup_folder() {
  return cgroup_folder(read_text("/proc/self/mountinfo"),
                       read_text("/proc/self/cgroup"));
}

}  // namespace launcher
