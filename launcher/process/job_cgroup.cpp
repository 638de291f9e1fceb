#include "launcher/process/job_cgroup.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>

#include "launcher/process/cgroup_path.h"

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

void JobCgroup::await_empty(const std::string& path) {
  constexpr int kPatienceMs = 5000;
  const Fd events(
      ::open((path + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  char text[256];
  pollfd change{events.get(), POLLPRI, 0};
  do {
    const ssize_t size = ::pread(events.get(), text, sizeof(text), 0);
    if (size <= 0 ||
        std::string_view(text, static_cast<size_t>(size)).find("populated 1") ==
            std::string_view::npos) {
      return;
    }
  } while (::poll(&change, 1, kPatienceMs) > 0);  // wakes when the text changes
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
