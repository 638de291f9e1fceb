#include "launcher/coordinator/first_failure.h"

#include <cstdio>

namespace launcher {
namespace {

std::string in_milliseconds(std::chrono::nanoseconds time) {
  char text[64];
  std::snprintf(text,
                sizeof(text),
                "%.3f ms",
                static_cast<double>(time.count()) / 1'000'000);
  return text;
}

}  // namespace

std::string order_text(const FirstFailure& first) {
  if (!first.next) {
    return "";
  }
  const FirstFailure::Next& next = *first.next;
  const std::string other =
      "rank " + std::to_string(next.rank) + " on host " + next.host;
  if (!next.later) {
    return other +
           " failed, too: which was first is not known, as their hosts' clocks "
           "were not compared yet";
  }
  const std::string clocks =
      "clocks agree to within " + in_milliseconds(next.clock_error);
  const std::string time = in_milliseconds(*next.later);
  return next.is_certain() ? time + " before " + other + " (" + clocks + ")"
                           : other + " failed " + time +
                                 " later: which was first is not known, as the "
                                 "hosts' " +
                                 clocks;
}

}  // namespace launcher
