#include "samples/support/step_times.h"

#include <algorithm>
#include <utility>

namespace samples {
namespace {

using Kind = TraceEvent::Kind;

constexpr double kNanosecondsPerMillisecond = 1e6;

double to_milliseconds(int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / kNanosecondsPerMillisecond;
}

TimeSpans all(const std::vector<TraceEvent>& events, Kind kind) {
  std::vector<TimeSpan> spans;
  for (const auto& event : events) {
    if (event.kind == kind) {
      spans.push_back(event.span);
    }
  }
  return unite(std::move(spans));
}

/// True for Gloo's "gloo:all_reduce" and NCCL's
/// "ncclDevKernel_AllReduce_Sum_f32".
bool is_all_reduce(const TraceEvent& event) {
  const auto has = [&](const char* text) {
    return event.name.find(text) != std::string::npos;
  };
  return event.kind == Kind::communication &&
         (has("all_reduce") || has("AllReduce"));
}

}  // namespace

TimeSpans scopes(const std::vector<TraceEvent>& events,
                 const std::string& name) {
  std::vector<TimeSpan> spans;
  for (const auto& event : events) {
    if (event.kind == Kind::scope && event.name == name) {
      spans.push_back(event.span);
    }
  }
  return unite(std::move(spans));
}

StepTimes step_times(const std::vector<TraceEvent>& events, int64_t steps) {
  const auto mean = [steps](const TimeSpans& spans) {
    return to_milliseconds(total_length(spans)) / static_cast<double>(steps);
  };
  const auto backward = scopes(events, "backward");
  const auto compute = intersect(all(events, Kind::compute), backward);
  const auto communication =
      intersect(all(events, Kind::communication), backward);
  StepTimes times{};
  times.forward = mean(scopes(events, "forward"));
  times.backward = mean(backward);
  times.compute = mean(compute);
  times.communication = mean(communication);
  times.hidden = mean(intersect(communication, compute));
  times.exposed = times.communication - times.hidden;
  times.optimizer = mean(scopes(events, "optimizer"));
  return times;
}

std::vector<AllReduceTime> last_all_reduces(
    const std::vector<TraceEvent>& events) {
  const auto backward = scopes(events, "backward");
  std::vector<AllReduceTime> result;
  if (backward.empty()) {
    return result;
  }
  const TimeSpan last = backward.back();
  const auto compute = all(events, Kind::compute);
  for (const auto& event : events) {
    if (!is_all_reduce(event) || event.span.begin < last.begin ||
        event.span.begin >= last.end) {
      continue;
    }
    const auto hidden = total_length(intersect({event.span}, compute));
    result.push_back(
        {to_milliseconds(event.span.begin - last.begin),
         to_milliseconds(event.span.end - last.begin),
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
