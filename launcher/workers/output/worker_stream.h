#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/fd.h"
#include "launcher/base/last_lines.h"
#include "launcher/base/line_splitter.h"
#include "launcher/workers/output/console.h"
#include "launcher/workers/output/filtered_log.h"
#include "launcher/workers/output/output_thread.h"

namespace launcher {

/// Destinations of a worker's stdout or stderr.
struct StreamTargets {
  Console* console = nullptr;  ///< nullptr: not shown
  std::string prefix;          ///< for the console and the filtered log
  /// Log file without prefixes; none: no log file.
  std::optional<OutputFile> file;
  FilteredLog* filtered = nullptr;  ///< nullptr: none
  std::string file_path{};          ///< path of `file`, for messages
  bool keeps_last_lines = false;    ///< keeps last_lines() for the report
};

/// Read end of one worker's stdout or stderr. Passive: the owner decides when
/// to read.
class WorkerStream {
 public:
  enum class State { open, ended };

  /// @param pipe is made non-blocking
  WorkerStream(Fd pipe, StreamTargets targets);

  int fd() const { return pipe_.get(); }
  /// Returns whether so much output is queued that the stream should not be
  /// read. A stalled console (OutputThread::is_stalled) does not hold up a
  /// stream with a log file: lines then go to the file only, and a single line
  /// on the console reports the gap.
  bool is_held_up() const;

  /// Reads and forwards one piece of the available data.
  State read_some();

  /// Returns since when a part of a line that the console does not show yet
  /// waits for its end; std::nullopt: there is none.
  std::optional<std::chrono::steady_clock::time_point> unshown_since() const {
    return unshown_since_;
  }
  /// Shows that part.
  void show_unfinished();

  /// Forwards the data that is available now and the unfinished last line, then
  /// closes the pipe, even if another process still holds the write end.
  void finish();

  /// Returns the last lines of the stream, for the report.
  std::vector<std::string> last_lines() const { return last_lines_.get(); }

 private:
  bool read_piece();
  bool is_console_stalled() const;
  void show(std::string_view line, LineEnd end);
  void show_what_is_missing();
  void take_line(std::string_view line, LineEnd end);

  Fd pipe_;
  StreamTargets targets_;
  LineSplitter splitter_;
  LastLines last_lines_;
  int64_t lines_not_shown_ = 0;
  size_t shown_bytes_ = 0;  // of the unfinished line
  std::optional<std::chrono::steady_clock::time_point> unshown_since_;
};

}  // namespace launcher
