#pragma once

#include <string>

namespace launcher {

/// What ddprun tells its user. An interface, so that tests can read it;
/// ConsoleStatus is the real one.
class Status {
 public:
  virtual ~Status() = default;

  virtual void info(const std::string& text) = 0;
  virtual void warn(const std::string& text) = 0;
  /// The report of an attempt, whole lines.
  virtual void write_report(const std::string& text) = 0;

  /// Asks for an OutputDrained event when everything has been written.
  virtual void drain() = 0;
};

}  // namespace launcher
