#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "launcher/base/event_loop.h"
#include "launcher/base/fd.h"
#include "launcher/base/line_splitter.h"
#include "launcher/workers/output/dropped_output.h"
#include "launcher/workers/output/log_writer.h"

namespace launcher {

/// ddprun's own stdout or stderr: whole lines go in, and out as fast as the
/// reader takes them. Never blocks: a reader that sleeps (a pager, a stopped
/// terminal) or a file on a server that does not answer holds up the workers'
/// output but no signal and no death.
///
/// A reader that is gone (`| head`, a closed terminal) is no reason to end a
/// job: what comes after is dropped. What cannot be written for another reason
/// is dropped and noted as a loss, and the next lines are tried again. Belongs
/// to the thread of its event loop.
class Console {
 public:
  /// @param fd 1 or 2; stays open
  /// @param losses must outlive this object
  /// @param logs writes to it where it is a regular file; must outlive this
  ///   object
  Console(int fd, EventLoop& loop, DroppedOutput& losses, LogWriter& logs);
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
  bool is_drained() const;
  /// So much is waiting that nothing more should be read for it.
  bool is_congested() const;
  /// And its reader has taken nothing for kStallTime.
  bool is_stalled() const;
  static constexpr std::chrono::milliseconds kStallTime{1'000};
  /// Both write to the same file, pipe or terminal.
  bool is_same_file(const Console& other) const;

 private:
  enum class Kind { direct, socket, may_block, file, closed };

  const char* name() const;
  void append(std::string_view text);
  ssize_t write_some(std::string_view text);
  void drop(int error);
  bool means_no_reader(int error) const;
  void await_reader();

  int fd_;
  EventLoop& loop_;
  DroppedOutput& losses_;
  LogWriter& logs_;
  EventLoop::Token waiting_ = 0;
  Fd reopened_;
  LogWriter::File file_ = 0;  // 0: not opened yet
  Kind kind_ = Kind::direct;
  bool is_terminal_ = false;
  bool line_is_open_ = false;  // the terminal's cursor is in a progress bar
  bool line_is_torn_ = false;  // the rest of a line was dropped
  char last_written_ = '\n';
  std::string buffer_;
  std::chrono::steady_clock::time_point last_progress_{};
};

}  // namespace launcher
