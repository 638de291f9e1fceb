#include "samples/support/step_times.h"

#include <algorithm>

namespace samples {
namespace {

constexpr double kNanosecondsPerMillisecond = 1e6;

double milliseconds(int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / kNanosecondsPerMillisecond;
}

Spans all(const std::vector<TraceEvent>& events, TraceEvent::Kind kind) {
  std::vector<Span> spans;
  for (const auto& event : events) {
    if (event.kind == kind) {
      spans.push_back(event.span);
    }
  }
  return unite(std::move(spans));
}

}  // namespace

Spans phases(const std::vector<TraceEvent>& events, const std::string& name) {
  std::vector<Span> spans;
  for (const auto& event : events) {
    if (event.kind == TraceEvent::Kind::phase && event.name == name) {
      spans.push_back(event.span);
    }
  }
  return unite(std::move(spans));
}

double phase_time(const std::vector<TraceEvent>& events,
                  const std::string& name,
                  int64_t passes) {
  return milliseconds(total_length(phases(events, name))) /
         static_cast<double>(passes);
}

StepTimes step_times(const std::vector<TraceEvent>& events, int64_t steps) {
  const auto mean = [steps](const Spans& spans) {
    return milliseconds(total_length(spans)) / static_cast<double>(steps);
  };
  const auto backward = phases(events, "backward");
  const auto compute =
      intersect(all(events, TraceEvent::Kind::compute), backward);
  const auto communication =
      intersect(all(events, TraceEvent::Kind::communication), backward);
  StepTimes times{};
  times.forward = phase_time(events, "forward", steps);
  times.backward = mean(backward);
  times.compute = mean(compute);
  times.communication = mean(communication);
  times.hidden = mean(intersect(communication, compute));
  times.exposed = times.communication - times.hidden;
  times.optimizer = phase_time(events, "optimizer", steps);
  return times;
}

std::vector<Reduction> last_reductions(const std::vector<TraceEvent>& events) {
  const auto backward = phases(events, "backward");
  std::vector<Reduction> result;
  if (backward.empty()) {
    return result;
  }
  const Span last = backward.back();
  const auto compute = all(events, TraceEvent::Kind::compute);
  for (const auto& event : events) {
    if (event.kind != TraceEvent::Kind::communication ||
        event.span.begin < last.begin || event.span.begin >= last.end) {
      continue;
    }
    const auto hidden = total_length(intersect({event.span}, compute));
    result.push_back(
        {milliseconds(event.span.begin - last.begin),
         milliseconds(event.span.end - last.begin),
         static_cast<double>(hidden) /
             static_cast<double>(std::max<int64_t>(event.span.length(), 1)),
         event.elements});
  }
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) {
    return a.begin < b.begin;
  });
  return result;
}

}  // namespace samples
