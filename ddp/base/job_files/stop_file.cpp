#include "ddp/base/job_files/stop_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>
#include <utility>

#include "ddp/base/cluster/worker_env.h"
#include "ddp/base/file_descriptor.h"

namespace ddp::detail {
namespace {

std::atomic<bool> has_asked_for_stops{false};

}  // namespace

StopFile::StopFile(std::string path) : path_(std::move(path)) {
  const FileDescriptor made(
      ::open(path_.c_str(),
             O_WRONLY | O_CREAT | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC,
             0600));
}

bool StopFile::says_stop() noexcept {
  if (!has_said_it_) {
    struct stat status {};
    has_said_it_ = ::stat(path_.c_str(), &status) == 0 && status.st_size > 0;
  }
  return has_said_it_;
}

StopFile* stop_file() noexcept {
  has_asked_for_stops = true;
  // Never destroyed: other threads may poll while the program ends.
  static StopFile* const file = []() -> StopFile* {
    const char* path = std::getenv(env::kStopFile);
    return path == nullptr || *path == '\0' ? nullptr : new StopFile(path);
  }();
  return file;
}

bool has_polled_stop_file() noexcept {
  return has_asked_for_stops;
}

}  // namespace ddp::detail
