#pragma once

#include <functional>

#include "launcher/base/event_loop.h"
#include "launcher/job/report_files.h"
#include "launcher/job/supervisor.h"
#include "launcher/workers/output/consoles.h"
#include "launcher/workers/output/log.h"

namespace launcher {

/// Writes ddprun's messages to its stderr, in order with the workers' lines.
/// Reports also go to files.
class ConsoleStatus : public Status {
 public:
  struct Context {
    EventLoop& loop;
    Consoles& consoles;
    OutputThread& logs;
    Log& log;
    DroppedOutput& losses;  ///< lost output, reported before the end
    ReportFiles& files;     ///< receive the reports, too
    std::function<void()> on_drained;
  };

  explicit ConsoleStatus(const Context& context) : context_(context) {}
  ~ConsoleStatus() override;
  ConsoleStatus(const ConsoleStatus&) = delete;
  ConsoleStatus& operator=(const ConsoleStatus&) = delete;

  void info(const std::string& text) override;
  void warn(const std::string& text) override;
  void write_report(const Report& report) override;
  void write_state(const JobState& state) override;
  void drain() override;

  /// Ends the wait for the output. Says how many bytes are left out, if stderr
  /// has a reader.
  ///
  /// @returns whether no byte is left out
  bool abandon_rest();

 private:
  bool check_drained();

  Context context_;
  bool has_told_losses_ = false;
  EventLoop::Token rounds_ = 0;
};

}  // namespace launcher
