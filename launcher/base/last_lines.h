#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace launcher {

/// The last lines of a stream, for the report of a failure. The frames of a
/// backtrace ("frame #3: ..."), as an uncaught c10::Error prints dozens after
/// its message, are left out, and long lines are shortened.
class LastLines {
 public:
  void add(std::string_view line);

  std::vector<std::string> get() const;

 private:
  std::deque<std::string> lines_;
  bool is_in_backtrace_ = false;
};

/// The last lines of a file; none where it cannot be read.
std::vector<std::string> last_lines_of_file(const std::string& path);

}  // namespace launcher
