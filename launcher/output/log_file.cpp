#include "launcher/output/log_file.h"

#include <unistd.h>

#include <utility>

namespace launcher {

LogFile::LogFile(Fd file, std::string path, Losses& losses)
    : file_(std::move(file)), path_(std::move(path)), losses_(&losses) {}

void LogFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = retry_interrupted(
        [&] { return ::write(file_.get(), bytes.data(), bytes.size()); });
    if (written < 0) {
      losses_->add(path_, bytes.size(), errno);
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void LogFile::finish() {
  // Each close() of a file tells, also that of a copy.
  const int copy = ::dup(file_.get());
  if (copy >= 0 && ::close(copy) != 0) {
    losses_->add(path_, 0, errno);
  }
  file_.reset();
}

}  // namespace launcher
