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

/// Ends a line that is open, unless the next line replaces it.
void Console::start_line(const void* stream) {
  const bool is_replaced =
      end_ == LineEnd::carriage_return && (is_terminal_ || stream_ == stream);
  if (!is_replaced &&
      (end_ == LineEnd::none || end_ == LineEnd::carriage_return)) {
    lines_.append("\n");
    has_step_ = false;
  }
  stream_ = stream;
}

void Console::write_line(const Line& line) {
  const bool continues =
      line.is_rest && end_ == LineEnd::none && stream_ == line.stream;
  if (!continues) {
    if (line.is_rest && line.text.empty()) {
      return;  // another line has ended this one
    }
    start_line(line.stream);
    lines_.append(line.prefix);
  }
  lines_.append(line.text);
  const bool is_step = line.end == LineEnd::carriage_return;
  if (is_terminal_ && (has_step_ || is_step)) {
    lines_.append(kEraseRestOfLine);
  }
  end_ = line.end;
  if (end_ != LineEnd::none) {
    lines_.append(is_step ? "\r" : "\n");
    has_step_ = is_step;
  }
}

void Console::write(std::string_view text) {
  start_line(nullptr);
  if (std::exchange(has_step_, false) && is_terminal_) {
    lines_.append(kEraseRestOfLine);
  }
  end_ = LineEnd::newline;
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
