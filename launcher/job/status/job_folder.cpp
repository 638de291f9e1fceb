#include "launcher/job/status/job_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

#include "launcher/plan/plan.h"

namespace launcher {
namespace {

Fd open_folder(const std::string& path) {
  return Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

}  // namespace

JobFolder::JobFolder(const Job& job, const RunDirectory& directory)
    : path_(directory.is_kept() ? "" : directory.path()) {
  if (path_.empty()) {
    const bool is_needed = job.options.hang_timeout || job.options.on_preempt ||
                           has_file_timer(job);
    path_ = make_temporary_folder(job, is_needed);
    is_own_ = !path_.empty();
  }
  lock_ = path_.empty() ? Fd() : lock_folder(path_);
}

JobFolder::~JobFolder() {
  if (is_own_) {
    std::error_code ignored;  // removes files of a killed supervisor, too
    std::filesystem::remove_all(path_, ignored);
  }
}

Fd lock_folder(const std::string& path) {
  Fd folder = open_folder(path);
  if (folder && ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
    folder.reset();
  }
  return folder;
}

}  // namespace launcher
