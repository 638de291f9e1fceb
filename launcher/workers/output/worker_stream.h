#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/base/fd.h"
#include "launcher/base/last_lines.h"
#include "launcher/base/line_splitter.h"
#include "launcher/plan/line_prefix.h"
#include "launcher/workers/output/console.h"
#include "launcher/workers/output/filtered_log.h"
#include "launcher/workers/output/log_file.h"

namespace launcher {

/// Where a worker's stdout or stderr goes.
struct StreamTargets {
  Console* console = nullptr;       ///< nullptr: not shown
  LinePrefix prefix;                ///< on the console and in a filtered log
  std::optional<LogFile> file;      ///< none: not stored; no prefix there
  FilteredLog* filtered = nullptr;  ///< nullptr: none
  std::string file_path{};          ///< of `file`, for people
  bool keeps_last_lines = false;    ///< for a report
};

/// The read end of one worker's stdout or stderr. Passive: somebody else says
/// when to read.
class WorkerStream {
 public:
  enum class State { open, ended };

  /// @param pipe is made non-blocking
  WorkerStream(Fd pipe, StreamTargets targets);

  int fd() const { return pipe_.get(); }
  /// So much is waiting to be written that nothing more should be read. A
  /// console that nobody reads (Console::is_stalled) does not hold up a stream
  /// that has a file: lines are then in the file alone, and one line says so.
  bool is_held_up() const;

  /// Passes on one piece of what is there.
  State read_some();

  /// Passes on what is there now and the unfinished last line, then closes the
  /// pipe, even when somebody still holds its other end and writes.
  void finish();

  /// The last lines that came, for a report.
  std::vector<std::string> last_lines() const { return last_lines_.get(); }

 private:
  bool read_piece();
  void show(const std::string& prefix, std::string_view line, LineEnd end);
  void show_what_is_missing(const std::string& prefix);
  void take_line(std::string_view line, LineEnd end);

  Fd pipe_;
  StreamTargets targets_;
  LineSplitter splitter_;
  LastLines last_lines_;
  int64_t lines_not_shown_ = 0;
};

}  // namespace launcher
