#include "launcher/base/last_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/base/fd.h"
#include "launcher/base/line_splitter.h"
#include "launcher/base/text.h"

namespace launcher {
namespace {

constexpr size_t kKeptLines = 20;
constexpr size_t kKeptLineBytes = 800;
constexpr off_t kReadBytes = 64 * 1024;

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

/// Matches "frame #3: f() + 0x1f (0x7f... in libc10.so)"; in Python programs,
/// "[rank0]: " comes first.
bool is_frame(std::string_view line) {
  if (starts_with(line, "[rank")) {
    const size_t end = line.find("]: ");
    line.remove_prefix(end == std::string_view::npos ? 0 : end + 3);
  }
  constexpr std::string_view kFrame = "frame #";
  if (!starts_with(line, kFrame)) {
    return false;
  }
  line.remove_prefix(kFrame.size());
  const size_t digits = line.find_first_not_of("0123456789");
  return digits != 0 && digits != std::string_view::npos && line[digits] == ':';
}

}  // namespace

void LastLines::add(std::string_view line) {
  // Also drops the empty lines after a backtrace.
  is_in_backtrace_ = is_frame(line) || (is_in_backtrace_ && line.empty());
  if (is_in_backtrace_) {
    return;
  }
  if (lines_.size() == kKeptLines) {
    lines_.pop_front();
  }
  lines_.push_back(shortened(line, kKeptLineBytes));
}

std::vector<std::string> LastLines::get() const {
  return {lines_.begin(), lines_.end()};
}

std::vector<std::string> last_lines_of_file(const std::string& path) {
  const Fd file(
      ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return {};
  }
  const off_t start = std::max(status.st_size - kReadBytes, off_t{0});
  std::string text(static_cast<size_t>(kReadBytes), '\0');
  const ssize_t size = ::pread(file.get(), text.data(), text.size(), start);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  const size_t newline = start > 0 ? text.find('\n') : text.npos;
  const std::string_view whole =
      std::string_view(text).substr(newline == text.npos ? 0 : newline + 1);
  LastLines last;
  LineSplitter splitter;
  const auto add = [&last](std::string_view line, LineEnd end) {
    if (end != LineEnd::carriage_return) {
      last.add(line);
    }
  };
  splitter.feed(whole, add);
  splitter.finish(add);
  return last.get();
}

}  // namespace launcher
