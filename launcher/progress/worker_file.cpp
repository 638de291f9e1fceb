#include "launcher/progress/worker_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace launcher {

Fd open_worker_file(const std::string& path) {
  Fd file(::open(path.c_str(),
                 O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (file && (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))) {
    file.reset();
  }
  return file;
}

std::string read_from(const Fd& file, off_t start, size_t most) {
  std::string text(most, '\0');
  const ssize_t size = retry_interrupted(
      [&] { return ::pread(file.get(), text.data(), text.size(), start); });
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

}  // namespace launcher
