#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "launcher/plan/name_template.h"

namespace launcher {

/// Prefix of each line of a worker: a template with properties of the worker
/// and with `${time}`, the time at which the line arrived.
class LinePrefix {
 public:
  using Time = std::chrono::system_clock::time_point;

  /// Creates an empty prefix.
  LinePrefix() : LinePrefix("") {}

  /// @param values of all names except `time`
  explicit LinePrefix(std::string_view pattern,
                      NameTemplate::Values values = {});

  /// Returns the prefix of a line that arrived at `time`.
  std::string at(Time time) const;

 private:
  NameTemplate template_;
  NameTemplate::Values values_;
  bool has_time_;
  std::string text_;  // of a template without the time
};

/// Returns "2026-11-22T04:05:06.789+01:00", in the time zone of this process
/// (TZ).
std::string time_text(LinePrefix::Time time);

}  // namespace launcher
