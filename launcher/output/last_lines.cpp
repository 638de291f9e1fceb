#include "launcher/output/last_lines.h"

#include "launcher/shortened.h"

namespace launcher {
namespace {

constexpr size_t kKeptLines = 20;
constexpr size_t kKeptLineBytes = 800;

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

/// "frame #3: f() + 0x1f (0x7f... in libc10.so)", after "[rank0]: " in Python.
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
  // An empty line ends a backtrace.
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

}  // namespace launcher
