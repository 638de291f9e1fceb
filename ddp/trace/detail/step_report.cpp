#include "ddp/trace/detail/step_report.h"

#include <array>
#include <cstdio>

namespace ddp::detail {

std::string step_report(const std::vector<TraceEvent>& events,
                        const TimeSpan& steps,
                        int64_t count,
                        const c10::Device& device) {
  TimeSpans computing;
  TimeSpans communication;
  for (const auto& event : events) {
    if (event.kind == TraceEvent::Kind::communication) {
      communication.push_back(event.span);
    } else if (event.kind == TraceEvent::Kind::compute ||
               (device.is_cpu() && event.name == kForwardScope)) {
      computing.push_back(event.span);
    }
  }
  computing = intersect(unite(std::move(computing)), {steps});
  communication = intersect(unite(std::move(communication)), {steps});
  const int64_t hidden = total_length(intersect(computing, communication));
  const int64_t exposed = total_length(communication) - hidden;
  const int64_t neither = steps.length() - total_length(computing) - exposed;

  const auto mean = [count](int64_t nanoseconds) {
    return static_cast<double>(nanoseconds) / 1e6 / static_cast<double>(count);
  };
  std::array<char, 200> text{};
  std::snprintf(text.data(),
                text.size(),
                "A step takes %.2f ms: %.2f computing, %.2f in communication "
                "that no computation hides (%.2f are hidden), %.2f in neither",
                mean(steps.length()),
                mean(total_length(computing)),
                mean(exposed),
                mean(hidden),
                mean(neither));
  return text.data();
}

}  // namespace ddp::detail
