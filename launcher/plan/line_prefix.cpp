#include "launcher/plan/line_prefix.h"

#include <cstdio>
#include <ctime>
#include <utility>

namespace launcher {
namespace {

constexpr const char* kTime = "time";

}  // namespace

LinePrefix::LinePrefix(std::string_view pattern, NameTemplate::Values values)
    : template_(pattern),
      values_(std::move(values)),
      has_time_(template_.has(kTime)),
      text_(has_time_ ? "" : template_.filled(values_)) {}

std::string LinePrefix::at(Time time) const {
  if (!has_time_) {
    return text_;
  }
  auto values = values_;
  values[kTime] = time_text(time);
  return template_.filled(values);
}

std::string time_text(LinePrefix::Time time) {
  using namespace std::chrono;
  const auto second = floor<seconds>(time);
  const auto fraction = duration_cast<milliseconds>(time - second);
  const std::time_t clock = system_clock::to_time_t(second);
  std::tm local{};
  ::localtime_r(&clock, &local);
  char date[32];
  std::strftime(date, sizeof(date), "%FT%T", &local);
  const long minutes_east = local.tm_gmtoff / 60;
  const long minutes_off = minutes_east < 0 ? -minutes_east : minutes_east;
  char text[64];
  std::snprintf(text,
                sizeof(text),
                "%s.%03d%c%02ld:%02ld",
                date,
                static_cast<int>(fraction.count()),
                minutes_east < 0 ? '-' : '+',
                minutes_off / 60,
                minutes_off % 60);
  return text;
}

}  // namespace launcher
