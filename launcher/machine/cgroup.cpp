#include "launcher/machine/cgroup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>
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

constexpr int kMostNames = 100;

/// Removes a cgroup and the cgroups that nested jobs left in it. Files of a
/// cgroup cannot be removed; rmdir() succeeds when the cgroup has no processes.
void remove_cgroup(const std::string& path) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.is_directory(error)) {
      remove_cgroup(entry.path());
    }
  }
  ::rmdir(path.c_str());
}

std::string parent_of(const std::string& folder) {
  const size_t slash = folder.rfind('/');
  return slash == std::string::npos ? "" : folder.substr(0, slash);
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

JobCgroup::JobCgroup(const std::optional<std::string>& parent) {
  if (!parent) {
    return;
  }
  // A killed ddprun, or a ddprun in another pid namespace, may have the same
  // name.
  const std::string name = *parent + "/ddprun." + std::to_string(::getpid());
  std::string path = name;
  for (int number = 1; ::mkdir(path.c_str(), 0700) != 0; ++number) {
    if (errno != EEXIST || number > kMostNames) {
      return;
    }
    path = name + "." + std::to_string(number);
  }
  if (::access((path + "/cgroup.kill").c_str(), W_OK) == 0) {
    path_ = path;
  } else {
    ::rmdir(path.c_str());
  }
}

JobCgroup::~JobCgroup() {
  if (!path_.empty()) {
    remove_cgroup(path_);
  }
}

Fd JobCgroup::add(const std::string& name) const {
  const std::string path = folder(name);
  if (path_.empty() || ::mkdir(path.c_str(), 0700) != 0) {
    return Fd();
  }
  return Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

void JobCgroup::remove(const std::string& name) const {
  if (!path_.empty()) {
    remove_cgroup(folder(name));
  }
}

void JobCgroup::kill() const {
  if (!path_.empty()) {
    const Fd file(
        ::open((path_ + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
    [[maybe_unused]] const ssize_t written =
        file ? ::write(file.get(), "1", 1) : 0;
  }
}

void JobCgroup::kill_and_remove() const {
  constexpr int kMostChecks = 500;
  kill();
  for (int check = 0; check < kMostChecks && !path_.empty() &&
                      ::access(path_.c_str(), F_OK) == 0;
       ++check) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    remove_cgroup(path_);
  }
}

std::optional<int64_t> oom_kills_of(std::string_view memory_events) {
  std::istringstream words{std::string(memory_events)};
  std::string name;
  for (int64_t count = 0; words >> name >> count;) {
    if (name == "oom_kill" && count >= 0) {
      return count;
    }
  }
  return std::nullopt;
}

OutOfMemory::OutOfMemory(std::string cgroup, std::string version_1)
    : cgroup_(std::move(cgroup)) {
  while (!cgroup_.empty() && !count()) {
    cgroup_ = parent_of(cgroup_);
  }
  if (cgroup_.empty()) {
    cgroup_ = std::move(version_1);
    file_ = "/memory.oom_control";
  }
  const auto first = count();
  if (!first) {
    cgroup_.clear();
  }
  before_ = first.value_or(0);
}

int64_t OutOfMemory::kills() const {
  return std::max<int64_t>(count().value_or(before_) - before_, 0);
}

std::optional<int64_t> OutOfMemory::count() const {
  return cgroup_.empty() ? std::nullopt
                         : oom_kills_of(read_text(cgroup_ + file_));
}

}  // namespace launcher
