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

/// ddprun's own stdout or stderr. Buffers whole lines and writes them as fast
/// as the reader accepts them. Never blocks: a sleeping reader (a pager, a
/// stopped terminal) or a file on a server that does not answer delays the
/// workers' output, but not the handling of signals and worker exits.
///
/// If the reader is gone (`| head`, a closed terminal), the job continues and
/// later output is dropped silently. Output that cannot be written for another
/// reason is dropped and recorded as lost; the next lines are tried again.
///
/// Not thread-safe: use from the event loop's thread only.
class Console {
 public:
  /// @param fd 1 or 2; stays open
  /// @param losses records lost output; must outlive this object
  /// @param logs writes the output if `fd` is a regular file; must outlive this
  ///   object
  Console(int fd, EventLoop& loop, DroppedOutput& losses, LogWriter& logs);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Adds a line of a worker. On a terminal, a line that ends with
  /// LineEnd::carriage_return stays the current line, as for progress bars. On
  /// any other output, every line ends with a newline.
  void write_line(std::string_view prefix, std::string_view line, LineEnd end);

  /// Adds text unchanged.
  void write(std::string_view text);

  /// Writes as much as possible without blocking. The event loop writes the
  /// rest later.
  void flush();

  bool is_terminal() const { return is_terminal_; }
  /// Returns whether all output has been written or dropped.
  bool is_drained() const;
  /// Returns whether so much output is queued that workers should not be read.
  bool is_congested() const;
  /// Returns whether the console is congested and its reader has accepted
  /// nothing for kStallTime.
  bool is_stalled() const;
  static constexpr std::chrono::milliseconds kStallTime{1'000};
  /// Returns whether both write to the same file, pipe or terminal.
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
  bool line_is_open_ = false;  // the cursor is in a progress bar
  bool line_is_torn_ = false;  // the rest of a line was dropped
  char last_written_ = '\n';
  std::string buffer_;
  std::chrono::steady_clock::time_point last_progress_{};
};

}  // namespace launcher
