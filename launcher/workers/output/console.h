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

  /// A line of a worker, or a part of it.
  struct Line {
    std::string_view prefix;
    std::string_view text;
    LineEnd end = LineEnd::newline;
    const void* stream = nullptr;  ///< identifies the worker's stream
    bool is_rest = false;          ///< an earlier part ended with LineEnd::none
  };

  /// Adds a line. It is written at the next flush().
  ///
  /// After a part of a line, the rest continues it. If the line of another
  /// stream comes in between, that line starts on a new line, and the rest has
  /// its prefix again. A step of a progress bar (LineEnd::carriage_return)
  /// stays the current line: on a terminal, the next line of any stream
  /// replaces it.
  void write_line(const Line& line);
  void flush();

  /// Writes text unchanged.
  void write(std::string_view text);

  bool is_terminal() const { return is_terminal_; }
  /// Returns whether both write to the same file, pipe or terminal.
  bool is_same_file(const Console& other) const;
  /// Thread that writes the output.
  OutputThread& thread() { return thread_; }
  const OutputThread& thread() const { return thread_; }

 private:
  void start_line(const void* stream);

  int fd_;
  bool is_terminal_;
  OutputThread thread_;
  OutputFile file_;
  std::string lines_;  // until flush()
  // End of the last line. LineEnd::none and carriage_return: it is open.
  LineEnd end_ = LineEnd::newline;
  const void* stream_ = nullptr;  // of the last line
  bool has_step_ = false;  // the terminal shows a step on the current line
};

}  // namespace launcher
