#include "launcher/status/status_folder.h"

#include <unistd.h>

#include "launcher/status/status_socket.h"

namespace launcher {

StatusFolder::StatusFolder(const Job& job,
                           const RunDirectory& directory,
                           const ProgressFolder& progress) {
  if (!directory.is_kept()) {
    path_ = directory.path();
  } else if (!progress.path().empty()) {
    path_ = progress.path();
  } else {
    path_ = make_temporary_folder(job, /*is_needed=*/false);
    is_own_ = !path_.empty();
  }
}

StatusFolder::~StatusFolder() {
  if (is_own_) {
    // Of a supervisor that was killed.
    ::unlink((path_ + "/" + std::string(kStatusSocketName)).c_str());
    ::rmdir(path_.c_str());
  }
}

}  // namespace launcher
