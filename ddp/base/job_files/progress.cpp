#include "ddp/base/job_files/progress.h"

#include <algorithm>

#include "ddp/base/job_files/progress_file.h"

namespace ddp {

void report_progress(std::string_view text) {
  if (auto* file = detail::progress_file()) {
    if (!text.empty()) {
      file->set_text(text);
    }
    file->beat();
  }
}

QuietGuard::QuietGuard(std::chrono::seconds limit, std::string_view text)
    : outer_(0) {
  if (auto* file = detail::progress_file()) {
    outer_ = file->limit();
    file->set_limit(std::max(limit, std::chrono::seconds(1)));
    report_progress(text);
  }
}

QuietGuard::~QuietGuard() {
  if (auto* file = detail::progress_file()) {
    file->set_limit(outer_);
  }
}

}  // namespace ddp
