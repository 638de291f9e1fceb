#include "launcher/job_cgroup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "launcher/cgroup_path.h"

namespace launcher {

JobCgroup::JobCgroup() {
  const auto own = own_cgroup_folder();
  if (!own) {
    return;
  }
  const std::string path = *own + "/ddprun." + std::to_string(::getpid());
  if (::mkdir(path.c_str(), 0700) != 0) {
    return;
  }
  const bool can_kill = ::access((path + "/cgroup.kill").c_str(), W_OK) == 0;
  folder_.reset(
      can_kill ? ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1);
  if (folder_) {
    path_ = path;
  } else {
    ::rmdir(path.c_str());
  }
}

JobCgroup::~JobCgroup() {
  remove_cgroup(path_);
}

void JobCgroup::kill_cgroup(const std::string& path) {
  if (!path.empty()) {
    const Fd file(
        ::open((path + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
    [[maybe_unused]] const ssize_t written =
        file ? ::write(file.get(), "1", 1) : 0;
  }
}

void JobCgroup::remove_cgroup(const std::string& path) {
  if (path.empty()) {
    return;
  }
  // Files of a cgroup cannot be removed; its folder goes when it is empty.
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.is_directory(error)) {
      remove_cgroup(entry.path());
    }
  }
  ::rmdir(path.c_str());
}

}  // namespace launcher
