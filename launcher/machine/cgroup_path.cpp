#include "launcher/machine/cgroup_path.h"

#include <iterator>
#include <sstream>
#include <vector>

#include "launcher/base/text_file.h"

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

/// Returns whether a comma-separated list contains the word.
bool has_word(const std::string& list, std::string_view word) {
  std::istringstream words(list);
  for (std::string each; std::getline(words, each, ',');) {
    if (each == word) {
      return true;
    }
  }
  return false;
}

/// Checks the fields after the dash: type source options.
bool is_mount_of(const std::vector<std::string>& words,
                 std::string_view controller) {
  if (words.size() < 3) {
    return false;
  }
  return controller.empty()
             ? words[0] == "cgroup2"
             : words[0] == "cgroup" && has_word(words[2], controller);
}

// Fields: id parent dev root mountpoint options... - type source options
std::optional<Mount> find_mount(std::string_view mountinfo,
                                std::string_view controller) {
  constexpr std::string_view kDash = " - ";
  std::istringstream lines{std::string(mountinfo)};
  for (std::string line; std::getline(lines, line);) {
    const size_t dash = line.find(kDash);
    if (dash != std::string::npos &&
        is_mount_of(words_of(line.substr(dash + kDash.size())), controller)) {
      const auto words = words_of(line.substr(0, dash));
      if (words.size() >= 5) {
        return Mount{words[3], words[4]};
      }
    }
  }
  return std::nullopt;
}

// Fields: number:controllers:path; version 2 has number 0 and no controllers
std::optional<std::string> find_membership(std::string_view membership,
                                           std::string_view controller) {
  std::istringstream lines{std::string(membership)};
  for (std::string line; std::getline(lines, line);) {
    const size_t list = line.find(':');
    const size_t path = line.find(":/", list + 1);
    if (list == std::string::npos || path == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(list + 1, path - list - 1);
    if (controller.empty() ? controllers.empty() && line[0] == '0'
                           : has_word(controllers, controller)) {
      return line.substr(path + 1);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> cgroup_folder(std::string_view mountinfo,
                                         std::string_view membership,
                                         std::string_view controller) {
  const auto mount = find_mount(mountinfo, controller);
  auto path = find_membership(membership, controller);
  if (!mount || !path || path->find("/..") == 0) {
    return std::nullopt;
  }
  if (mount->root != "/") {
    // A container sees only a part of the hierarchy.
    if (path->rfind(mount->root, 0) != 0) {
      return std::nullopt;
    }
    *path = path->substr(mount->root.size());
  }
  return mount->point + (*path == "/" ? "" : *path);
}

std::optional<std::string> own_cgroup_folder(std::string_view controller) {
  return cgroup_folder(read_text("/proc/self/mountinfo"),
                       read_text("/proc/self/cgroup"),
                       controller);
}

std::vector<std::string> limiting_cgroup_folders(std::string_view controller) {
  std::string folder =
      own_cgroup_folder(controller)
          .value_or(controller.empty()
                        ? ""
                        : "/sys/fs/cgroup/" + std::string(controller));
  std::vector<std::string> folders;
  for (; folder.size() > 1; folder.resize(folder.rfind('/'))) {
    folders.push_back(folder);
  }
  return folders;
}

}  // namespace launcher
