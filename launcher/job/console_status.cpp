#include "launcher/job/console_status.h"

#include <utility>

namespace launcher {

ConsoleStatus::~ConsoleStatus() {
  context_.loop.unwatch(rounds_);
}

void ConsoleStatus::info(const std::string& text) {
  context_.log.info(text);
}

void ConsoleStatus::warn(const std::string& text) {
  context_.log.warn(text);
}

void ConsoleStatus::write_report(const Report& report) {
  context_.consoles.err().write(report.text);
  context_.files.add(report);
}

void ConsoleStatus::write_state(const JobState& state) {
  context_.files.update(state);
}

void ConsoleStatus::drain() {
  context_.files.finish();
  if (!check_drained()) {
    rounds_ = context_.loop.watch_rounds([this] { check_drained(); });
  }
}

bool ConsoleStatus::check_drained() {
  const bool has_files =
      context_.logs.is_drained() && context_.files.thread().is_drained();
  if (has_files && !context_.losses.empty() &&
      !std::exchange(has_told_losses_, true)) {
    warn(context_.losses.summary());
  }
  if (!has_files || !context_.consoles.out().thread().is_drained() ||
      !context_.consoles.err().thread().is_drained()) {
    return false;
  }
  context_.loop.unwatch(rounds_);
  context_.on_drained();
  return true;
}

bool ConsoleStatus::abandon_rest() {
  OutputThread& err = context_.consoles.err().thread();
  bool is_complete = true;
  for (OutputThread* thread : {&context_.logs,
                               &context_.files.thread(),
                               &context_.consoles.out().thread(),
                               &err}) {
    thread->drain();
    is_complete &= thread->is_drained();
    thread->abandon();
  }
  if (!is_complete && !context_.losses.empty() && err.is_drained()) {
    warn(context_.losses.summary());
    err.drain();
  }
  return is_complete;
}

}  // namespace launcher
