#include "launcher/job/console_status.h"

#include <utility>

namespace launcher {

ConsoleStatus::~ConsoleStatus() {
  context_.loop.unwatch(rounds_);
}

void ConsoleStatus::info(const std::string& text) {
  context_.log.info(text);
  context_.consoles.flush();
}

void ConsoleStatus::warn(const std::string& text) {
  context_.log.warn(text);
  context_.consoles.flush();
}

void ConsoleStatus::write_report(const Report& report) {
  context_.consoles.err().write(report.text);
  context_.consoles.flush();
  context_.files.add(report);
}

void ConsoleStatus::write_state(const JobState& state) {
  context_.files.update(state);
}

void ConsoleStatus::drain() {
  context_.files.finish();  // may log a warning
  if (!check_drained()) {
    rounds_ = context_.loop.watch_rounds([this] { check_drained(); });
  }
}

bool ConsoleStatus::check_drained() {
  if (!context_.logs.is_drained()) {
    return false;
  }
  if (!context_.losses.empty() && !std::exchange(has_told_losses_, true)) {
    warn(context_.losses.summary());
  }
  context_.consoles.flush();
  if (!context_.consoles.are_drained()) {
    return false;
  }
  context_.loop.unwatch(rounds_);
  context_.on_drained();
  return true;
}

}  // namespace launcher
