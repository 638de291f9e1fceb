#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "launcher/base/event_loop.h"
#include "launcher/base/line_splitter.h"
#include "launcher/workers/progress/timer_table.h"

namespace launcher {

/// torchrun's file timer: a FIFO (TORCHELASTIC_TIMER_FILE) into which processes
/// write when they want to be ended unless they are done in time.
class TimerFile {
 public:
  using Handler = std::function<void(const TimerTable::Expired&)>;

  /// Makes the FIFO; one that is there is replaced.
  ///
  /// @param handler is called for each process with a timer that has expired
  /// @throws LaunchError when it cannot be made, or something else is there
  TimerFile(EventLoop& loop, std::string path, Handler handler);
  /// Removes it.
  ~TimerFile();
  TimerFile(const TimerFile&) = delete;
  TimerFile& operator=(const TimerFile&) = delete;

 private:
  void read();
  void take(std::string_view line);
  void arm();
  void look();

  EventLoop& loop_;
  std::string path_;
  Handler handler_;
  Fd fifo_;
  EventLoop::Token watch_ = 0;
  LineSplitter lines_{LineSplitter::Returns::in_text, 64 * 1024};
  TimerTable timers_;
};

}  // namespace launcher
