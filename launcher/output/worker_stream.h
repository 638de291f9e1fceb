#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/fd.h"
#include "launcher/output/console.h"
#include "launcher/output/filtered_log.h"
#include "launcher/output/last_lines.h"
#include "launcher/output/line_prefix.h"
#include "launcher/output/line_splitter.h"
#include "launcher/output/log_file.h"

namespace launcher {

/// Where a worker's stdout or stderr goes.
struct StreamTargets {
  Console* console = nullptr;       ///< nullptr: not shown
  LinePrefix prefix;                ///< on the console and in a filtered log
  std::optional<LogFile> file;      ///< none: not stored; no prefix there
  FilteredLog* filtered = nullptr;  ///< nullptr: none
};

/// The read end of one worker's stdout or stderr. Passive: somebody else says
/// when to read.
class WorkerStream {
 public:
  enum class State { open, ended };

  /// @param pipe is made non-blocking
  WorkerStream(Fd pipe, StreamTargets targets);

  int fd() const { return pipe_.get(); }
  Console* console() const { return targets_.console; }

  /// Passes on one piece of what is there.
  State read_some();

  /// Passes on all that is there now and the unfinished last line, then closes
  /// the pipe, even when somebody still holds its other end.
  void finish();

  /// The last lines that came, for a report.
  std::vector<std::string> last_lines() const { return last_lines_.get(); }

 private:
  bool read_piece();
  void take_line(std::string_view line, LineEnd end);

  Fd pipe_;
  StreamTargets targets_;
  LineSplitter splitter_;
  LastLines last_lines_;
};

}  // namespace launcher
