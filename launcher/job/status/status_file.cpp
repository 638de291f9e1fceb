#include "launcher/job/status/status_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace launcher {
namespace {

constexpr const char* kWriteTimer = "status";
constexpr std::chrono::seconds kInterval{1};

bool is_written(const std::string& path, std::string_view text) {
  const Fd file(::open(path.c_str(),
                       O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                       0600));
  return file && ::write(file.get(), text.data(), text.size()) ==
                     static_cast<ssize_t>(text.size());
}

}  // namespace

StatusFile::StatusFile(EventLoop& loop,
                       const std::string& folder,
                       std::function<std::string()> describe)
    : loop_(loop),
      describe_(std::move(describe)),
      path_(folder.empty() ? "" : folder + "/" + std::string(kStatusFileName)) {
  if (!path_.empty()) {
    write();
  }
}

StatusFile::~StatusFile() {
  if (!path_.empty()) {
    loop_.disarm_timer(kWriteTimer);
    ::unlink(path_.c_str());
  }
}

void StatusFile::write() {
  const std::string next = path_ + ".new";
  // On a full disk, keep the last status and try again in a second. Without a
  // last status, install the incomplete file: an empty file shows that the job
  // exists.
  const bool replaces =
      is_written(next, describe_()) || ::access(path_.c_str(), F_OK) != 0;
  if (!replaces || std::rename(next.c_str(), path_.c_str()) != 0) {
    ::unlink(next.c_str());
  }
  loop_.arm_timer(kWriteTimer, kInterval, [this] { write(); });
}

}  // namespace launcher
