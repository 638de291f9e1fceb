#pragma once

#include <string>
#include <string_view>

#include "launcher/event_loop.h"
#include "launcher/fd.h"
#include "launcher/output/line_splitter.h"

namespace launcher {

/// ddprun's own stdout or stderr: whole lines go in, and out as fast as the
/// reader takes them. Never blocks, so that a reader that sleeps (a pager, a
/// stopped terminal) holds up the workers' output but no signal and no death.
///
/// A reader that is gone (`| head`) is no reason to end a job: what comes after
/// is dropped. Belongs to the thread of its event loop.
class Console {
 public:
  /// @param fd 1 or 2; stays open
  Console(int fd, EventLoop& loop);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Adds a line of a worker. On a terminal a carriage_return line stays the
  /// current line, as progress bars want it; everywhere else it is whole.
  void write_line(std::string_view prefix, std::string_view line, LineEnd end);

  /// Adds text as it is.
  void write(std::string_view text);

  /// Writes what can be written at once; the rest follows by itself.
  void flush();

  bool is_terminal() const { return is_terminal_; }
  /// Everything has been written or dropped.
  bool is_drained() const { return buffer_.empty(); }
  /// So much is waiting that nothing more should be read for it.
  bool is_congested() const;
  /// Both write to the same file, pipe or terminal.
  bool is_same_file(const Console& other) const;

 private:
  enum class Kind { direct, socket, may_block, closed };

  ssize_t write_some(std::string_view text);
  void await_reader();

  int fd_;
  EventLoop& loop_;
  EventLoop::Token waiting_ = 0;
  Fd reopened_;
  Kind kind_ = Kind::direct;
  bool is_terminal_ = false;
  bool line_is_open_ = false;  // the terminal's cursor is in a progress bar
  std::string buffer_;
};

}  // namespace launcher
