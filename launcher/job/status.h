#pragma once

#include <string>

#include "launcher/job/report/report.h"

namespace launcher {

/// Receives ddprun's messages for the user. An interface, so that tests can
/// read the messages; ConsoleStatus is the production implementation.
class Status {
 public:
  virtual ~Status() = default;

  virtual void info(const std::string& text) = 0;
  virtual void warn(const std::string& text) = 0;
  /// Writes the report of a finished attempt.
  virtual void write_report(const Report& report) = 0;
  /// Writes events as JSON: whole lines.
  virtual void write_events(const std::string& lines) = 0;

  /// Writes the remaining output of a finished job and then requests an
  /// OutputDrained event.
  virtual void drain() = 0;
};

}  // namespace launcher
