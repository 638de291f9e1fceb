#include "launcher/workers/output/console.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace launcher {
namespace {

constexpr std::string_view kEraseRestOfLine = "\x1b[K";

}  // namespace

Console::Console(int fd, EventLoop& loop, DroppedOutput& losses)
    : fd_(fd),
      is_terminal_(::isatty(fd) == 1),
      thread_(loop, losses),
      file_(Fd(check(::fcntl(fd, F_DUPFD_CLOEXEC, 3), "fcntl")),
            fd == STDERR_FILENO ? "stderr" : "stdout",
            thread_) {}

void Console::write_line(std::string_view prefix,
                         std::string_view line,
                         LineEnd end) {
  const bool stays_open = end == LineEnd::carriage_return && is_terminal_;
  lines_.append(prefix).append(line);
  if (line_is_open_ || stays_open) {
    lines_.append(kEraseRestOfLine);
  }
  lines_.append(stays_open ? "\r" : "\n");
  line_is_open_ = stays_open;
}

void Console::write(std::string_view text) {
  if (std::exchange(line_is_open_, false)) {
    lines_.append(kEraseRestOfLine);
  }
  lines_.append(text);
  flush();
}

void Console::flush() {
  file_.write(std::exchange(lines_, {}));
}

bool Console::is_same_file(const Console& other) const {
  struct stat mine {};
  struct stat its {};
  return ::fstat(fd_, &mine) == 0 && ::fstat(other.fd_, &its) == 0 &&
         mine.st_dev == its.st_dev && mine.st_ino == its.st_ino;
}

}  // namespace launcher
