#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "launcher/plan/name_template.h"

namespace launcher {

/// What stands before each line of a worker: a template of what is known of the
/// worker and, as `${time}`, of the time at which the line came.
class LinePrefix {
 public:
  using Time = std::chrono::system_clock::time_point;

  /// No prefix.
  LinePrefix() : LinePrefix("") {}

  /// @param values all names but `time`
  explicit LinePrefix(std::string_view pattern,
                      NameTemplate::Values values = {});

  /// The prefix of a line that came at `time`.
  std::string at(Time time) const;

 private:
  NameTemplate template_;
  NameTemplate::Values values_;
  bool has_time_;
  std::string text_;  // of a template without the time
};

/// "2026-11-22T04:05:06.789+01:00", in the time zone of this process (TZ).
std::string time_text(LinePrefix::Time time);

}  // namespace launcher
