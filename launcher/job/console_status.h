#pragma once

#include <functional>

#include "launcher/base/event_loop.h"
#include "launcher/job/report/report_files.h"
#include "launcher/job/status.h"
#include "launcher/workers/output/consoles.h"
#include "launcher/workers/output/log.h"
#include "launcher/workers/output/log_writer.h"

namespace launcher {

/// ddprun's words on its stderr, in order with the workers' lines. They are
/// written at once, since no round of the event loop may follow for long.
/// Reports go to files, too.
class ConsoleStatus : public Status {
 public:
  struct Context {
    EventLoop& loop;
    Consoles& consoles;
    const LogWriter& logs;
    Log& log;
    const DroppedOutput& losses;  ///< told before the end
    ReportFiles& files;           ///< beside the console
    std::function<void()> on_drained;
  };

  explicit ConsoleStatus(const Context& context) : context_(context) {}
  ~ConsoleStatus() override;
  ConsoleStatus(const ConsoleStatus&) = delete;
  ConsoleStatus& operator=(const ConsoleStatus&) = delete;

  void info(const std::string& text) override;
  void warn(const std::string& text) override;
  void write_report(const Report& report) override;
  void write_events(const std::string& lines) override;
  void drain() override;

 private:
  bool check_drained();

  Context context_;
  bool has_told_losses_ = false;
  EventLoop::Token rounds_ = 0;
};

}  // namespace launcher
