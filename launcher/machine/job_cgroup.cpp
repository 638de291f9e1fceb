#include "launcher/machine/job_cgroup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

namespace launcher {
namespace {

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

}  // namespace

JobCgroup::JobCgroup(const std::optional<std::string>& parent) {
  if (!parent) {
    return;
  }
  // The name may exist already: of a killed ddprun, or of a ddprun in another
  // pid namespace.
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

}  // namespace launcher
