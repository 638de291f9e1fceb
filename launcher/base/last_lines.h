#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace launcher {

/// Keeps the last lines of a stream, for the report of a failure. Shortens long
/// lines and drops the frames of a backtrace ("frame #3: ..."): an uncaught
/// c10::Error prints dozens of them after its message.
class LastLines {
 public:
  void add(std::string_view line);

  std::vector<std::string> get() const;

 private:
  std::deque<std::string> lines_;
  bool is_in_backtrace_ = false;
};

/// Returns the last lines of a file; empty if the file cannot be read.
std::vector<std::string> last_lines_of_file(const std::string& path);

}  // namespace launcher
