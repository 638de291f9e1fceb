#include "launcher/workers/output/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <utility>

namespace launcher {
namespace {

constexpr size_t kFlushBytes = 64 * 1024;
constexpr size_t kCongestedBytes = 1024 * 1024;
constexpr std::string_view kEraseRestOfLine = "\x1b[K";

}  // namespace

Console::Console(int fd,
                 EventLoop& loop,
                 DroppedOutput& losses,
                 LogWriter& logs)
    : fd_(fd), loop_(loop), losses_(losses), logs_(logs) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    kind_ = Kind::closed;
    return;
  }
  is_terminal_ = ::isatty(fd) == 1;
  if (S_ISSOCK(status.st_mode)) {
    kind_ = Kind::socket;
  } else if (S_ISREG(status.st_mode)) {
    kind_ = Kind::file;
  } else if (S_ISFIFO(status.st_mode) || is_terminal_) {
    // O_NONBLOCK applies to the open file description, which the shell and
    // other processes share. Open a description of our own.
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    reopened_.reset(
        ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    kind_ = reopened_ ? Kind::direct : Kind::may_block;
  }
}

Console::~Console() {
  loop_.unwatch(waiting_);
}

const char* Console::name() const {
  return fd_ == STDERR_FILENO ? "stderr" : "stdout";
}

void Console::append(std::string_view text) {
  if (std::exchange(line_is_torn_, false)) {
    buffer_ += '\n';
  }
  buffer_.append(text);
}

void Console::write_line(std::string_view prefix,
                         std::string_view line,
                         LineEnd end) {
  append(prefix);
  append(line);
  const bool stays_open = end == LineEnd::carriage_return && is_terminal_;
  if (line_is_open_ || stays_open) {
    append(kEraseRestOfLine);
  }
  append(stays_open ? "\r" : "\n");
  line_is_open_ = stays_open;
  if (buffer_.size() >= kFlushBytes) {
    flush();
  }
}

void Console::write(std::string_view text) {
  if (std::exchange(line_is_open_, false)) {
    append(kEraseRestOfLine);
  }
  append(text);
}

ssize_t Console::write_some(std::string_view text) {
  switch (kind_) {
    case Kind::closed:
      return static_cast<ssize_t>(text.size());
    case Kind::socket:
      return ::send(fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    case Kind::may_block: {
      // A write of PIPE_BUF bytes does not block if poll() reports room.
      pollfd room{fd_, POLLOUT, 0};
      if (::poll(&room, 1, 0) == 0) {
        errno = EAGAIN;
        return -1;
      }
      text = text.substr(0, PIPE_BUF);
      return ::write(fd_, text.data(), text.size());
    }
    case Kind::file:
      // A write to a file server may block, and poll() does not predict it.
      if (!logs_.is_open(file_)) {
        file_ = logs_.open(Fd(check(::fcntl(fd_, F_DUPFD_CLOEXEC, 3), "fcntl")),
                           name(),
                           LogWriter::Content::lines);
      }
      logs_.write(file_, text);
      return static_cast<ssize_t>(text.size());
    case Kind::direct:
      break;
  }
  return ::write(reopened_ ? reopened_.get() : fd_, text.data(), text.size());
}

void Console::flush() {
  if (waiting_ != 0) {
    return;
  }
  size_t done = 0;
  int error = 0;
  while (done < buffer_.size() && error == 0) {
    const ssize_t written = retry_interrupted(
        [&] { return write_some(std::string_view(buffer_).substr(done)); });
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else {
      error = errno;
    }
  }
  if (done > 0) {
    last_written_ = buffer_[done - 1];
    last_progress_ = std::chrono::steady_clock::now();
  }
  buffer_.erase(0, done);
  if (error == EAGAIN) {
    await_reader();
  } else if (error != 0) {
    drop(error);
  }
}

void Console::drop(int error) {
  const size_t lost = buffer_.size();
  buffer_.clear();
  line_is_torn_ = last_written_ != '\n';
  if (means_no_reader(error)) {
    kind_ = Kind::closed;
  } else {
    losses_.add(name(), lost, error);
  }
}

bool Console::means_no_reader(int error) const {
  return error == EPIPE || error == ECONNRESET || error == ENOTCONN ||
         (error == EIO && is_terminal_);
}

void Console::await_reader() {
  const int fd = reopened_ ? reopened_.get() : fd_;
  waiting_ = loop_.watch(fd, EPOLLOUT, [this] {
    loop_.unwatch(waiting_);
    waiting_ = 0;
    flush();
  });
}

bool Console::is_drained() const {
  return buffer_.empty() && (kind_ != Kind::file || logs_.is_drained());
}

bool Console::is_congested() const {
  return buffer_.size() >= kCongestedBytes ||
         (kind_ == Kind::file && logs_.is_congested());
}

bool Console::is_stalled() const {
  return is_congested() &&
         std::chrono::steady_clock::now() - last_progress_ >= kStallTime;
}

bool Console::is_same_file(const Console& other) const {
  struct stat mine {};
  struct stat its {};
  return ::fstat(fd_, &mine) == 0 && ::fstat(other.fd_, &its) == 0 &&
         mine.st_dev == its.st_dev && mine.st_ino == its.st_ino;
}

}  // namespace launcher
