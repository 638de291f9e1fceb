#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "launcher/base/event_loop.h"
#include "launcher/base/line_splitter.h"
#include "launcher/workers/progress/timer_table.h"

namespace launcher {

/// torchrun's file timer: a FIFO (TORCHELASTIC_TIMER_FILE) to which processes
/// write deadlines. A process that does not clear its timer before the deadline
/// is ended.
class TimerFile {
 public:
  using Handler = std::function<void(const TimerTable::Expired&)>;

  /// Creates the FIFO and replaces an existing FIFO.
  ///
  /// @param handler is called for each process with an expired timer
  /// @throws LaunchError if the FIFO cannot be created, or if the path is
  ///   another file type
  TimerFile(EventLoop& loop, std::string path, Handler handler);
  /// Removes the FIFO.
  ~TimerFile();
  TimerFile(const TimerFile&) = delete;
  TimerFile& operator=(const TimerFile&) = delete;

 private:
  void read();
  void on_line(std::string_view line);
  void arm();
  void on_expiry();

  EventLoop& loop_;
  std::string path_;
  Handler handler_;
  Fd fifo_;
  EventLoop::Token watch_ = 0;
  LineSplitter lines_{LineSplitter::Returns::in_text, 64 * 1024};
  TimerTable timers_;
};

}  // namespace launcher
