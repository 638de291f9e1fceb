#include "launcher/workers/progress/timer_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "launcher/base/error.h"

namespace launcher {
namespace {

constexpr const char* kExpiryTimer = "file timer";

double wall_seconds() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Replaces an existing FIFO, as torchrun does, but removes no other file type.
void make_fifo(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && S_ISFIFO(status.st_mode)) {
    ::unlink(path.c_str());
  }
  if (::mkfifo(path.c_str(), 0600) != 0) {
    throw LaunchError(kExitFailure,
                      "cannot make the FIFO " + path + " (" +
                          std::generic_category().message(errno) +
                          "); give another TORCHELASTIC_TIMER_FILE");
  }
}

}  // namespace

TimerFile::TimerFile(EventLoop& loop, std::string path, Handler handler)
    : loop_(loop), path_(std::move(path)), handler_(std::move(handler)) {
  make_fifo(path_);
  // Opened for writing, too: the FIFO then never reaches end of file.
  fifo_ = Fd(
      check(::open(path_.c_str(), O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC),
            path_));
  watch_ = loop_.watch(fifo_.get(), EPOLLIN, [this] { read(); });
}

TimerFile::~TimerFile() {
  loop_.disarm_timer(kExpiryTimer);
  loop_.unwatch(watch_);
  ::unlink(path_.c_str());
}

void TimerFile::read() {
  std::array<char, 64 * 1024> piece;
  const ssize_t size = retry_interrupted(
      [&] { return ::read(fifo_.get(), piece.data(), piece.size()); });
  if (size <= 0) {
    return;
  }
  lines_.feed({piece.data(), static_cast<size_t>(size)},
              [this](std::string_view line, LineEnd) { on_line(line); });
  arm();
}

void TimerFile::on_line(std::string_view line) {
  if (const auto request = parse_timer_request(line)) {
    timers_.apply(*request, std::chrono::steady_clock::now(), wall_seconds());
  }
}

void TimerFile::arm() {
  loop_.arm_timer_at(kExpiryTimer, timers_.next(), [this] { on_expiry(); });
}

void TimerFile::on_expiry() {
  const auto expired = timers_.remove_expired(std::chrono::steady_clock::now());
  arm();
  for (const TimerTable::Expired& timer : expired) {
    handler_(timer);
  }
}

}  // namespace launcher
