#pragma once

#include <string>
#include <string_view>

#include "launcher/base/line_splitter.h"
#include "launcher/workers/output/output_thread.h"

namespace launcher {

/// ddprun's own stdout or stderr. Never blocks: a sleeping reader (a pager, a
/// stopped terminal) or a file on a server that does not answer delays the
/// workers' output, but not the handling of signals and worker exits.
class Console {
 public:
  /// @param fd 1 or 2; stays open
  /// @param losses records lost output; must outlive this object
  Console(int fd, EventLoop& loop, DroppedOutput& losses);

  /// Adds a line of a worker. On a terminal, a line that ends with
  /// LineEnd::carriage_return stays the current line, as for progress bars. On
  /// any other output, every line ends with a newline. The lines are written at
  /// the next flush().
  void write_line(std::string_view prefix, std::string_view line, LineEnd end);
  void flush();

  /// Writes text unchanged.
  void write(std::string_view text);

  bool is_terminal() const { return is_terminal_; }
  /// Returns whether both write to the same file, pipe or terminal.
  bool is_same_file(const Console& other) const;
  OutputThread& thread() { return thread_; }
  const OutputThread& thread() const { return thread_; }

 private:
  int fd_;
  bool is_terminal_;
  OutputThread thread_;
  OutputFile file_;
  std::string lines_;          // until flush()
  bool line_is_open_ = false;  // the cursor is in a progress bar
};

}  // namespace launcher
