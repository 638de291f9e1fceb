#include "launcher/workers/progress/progress_folder.h"

#include <filesystem>

#include "launcher/workers/output/run_directory.h"

namespace launcher {

ProgressFolder::ProgressFolder(const Job& job)
    : path_(job.options.hang_timeout || job.options.on_preempt ||
                    has_file_timer(job)
                ? make_temporary_folder(job, /*is_needed=*/true)
                : "") {}

ProgressFolder::~ProgressFolder() {
  if (!path_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
}

}  // namespace launcher
