#pragma once

#include <string>

#include "launcher/job/report/report.h"

namespace launcher {

/// What ddprun tells its user. An interface, so that tests can read it;
/// ConsoleStatus is the real one.
class Status {
 public:
  virtual ~Status() = default;

  virtual void info(const std::string& text) = 0;
  virtual void warn(const std::string& text) = 0;
  /// An attempt is over.
  virtual void write_report(const Report& report) = 0;
  /// Events as JSON: whole lines.
  virtual void write_events(const std::string& lines) = 0;

  /// The job is over. Asks for an OutputDrained event when everything has been
  /// written.
  virtual void drain() = 0;
};

}  // namespace launcher
