#include "samples/support/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace samples {
namespace {

constexpr std::chrono::milliseconds kBarInterval{100};
constexpr int kLongestBar = 40;
constexpr int kUnknownWidth = 80;

}  // namespace

std::string render(const Progress& progress, int width) {
  char loss[32];
  std::snprintf(loss, sizeof loss, "%.4f", progress.loss);
  const std::string counts = std::to_string(progress.done) + "/" +
                             std::to_string(progress.total) + "  loss " + loss;
  // Reserve two brackets, three spaces and the last column, which stays free.
  const int room = width - static_cast<int>(progress.title.size()) -
                   static_cast<int>(counts.size()) - 5;
  const int length = std::clamp(room, 0, kLongestBar);
  const auto filled = static_cast<size_t>(length * progress.done /
                                          std::max<int64_t>(progress.total, 1));
  const std::string bar =
      std::string(filled, '=') +
      std::string(static_cast<size_t>(length) - filled, ' ');
  const std::string text = progress.title + " [" + bar + "] " + counts;
  return text.substr(0, static_cast<size_t>(std::max(width - 1, 0)));
}

Console::Console(std::ostream& out, int width) : out_(out), width_(width) {}

Console::~Console() {
  clear();
  out_.flush();
}

void Console::line(const std::string& text) {
  clear();
  out_ << text + "\n" << std::flush;
}

bool Console::wants_progress() const {
  return width_ > 0 && std::chrono::steady_clock::now() >= next_;
}

void Console::show(const Progress& progress) {
  clear();
  out_ << render(progress, width_) << std::flush;
  has_bar_ = true;
  next_ = std::chrono::steady_clock::now() + kBarInterval;
}

void Console::clear() {
  if (has_bar_) {
    out_ << "\r\x1b[K";
    has_bar_ = false;
  }
}

int stdout_width() {
  if (!isatty(STDOUT_FILENO)) {
    return 0;
  }
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0
             ? size.ws_col
             : kUnknownWidth;
}

}  // namespace samples
