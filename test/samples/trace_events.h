#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "samples/support/trace.h"

// Events of a profiler, made by hand.
namespace samples {

inline constexpr int64_t kMs = 1'000'000;

/// Returns begin, end, begin, end, ...
inline std::vector<int64_t> flat(const TimeSpans& spans) {
  std::vector<int64_t> result;
  for (const TimeSpan& span : spans) {
    result.insert(result.end(), {span.begin, span.end});
  }
  return result;
}

/// Times are in milliseconds.
inline TraceEvent event(TraceEvent::Kind kind,
                        const std::string& name,
                        int64_t begin,
                        int64_t end,
                        int64_t elements = 0) {
  return {kind, name, {begin * kMs, end * kMs}, elements};
}

/// Two steps, with compute in [10, 16) and [110, 118): 6 and 8 ms.
inline const std::vector<TraceEvent> kTwoSteps{
    event(TraceEvent::Kind::scope, "forward", 0, 10),
    event(TraceEvent::Kind::scope, "backward", 10, 20),
    event(TraceEvent::Kind::compute, "f", 10, 13),
    event(TraceEvent::Kind::compute, "g", 12, 16),  // overlaps f
    event(TraceEvent::Kind::communication, "all_reduce", 12, 15, 7),
    event(TraceEvent::Kind::communication, "all_reduce", 14, 19, 5),
    event(TraceEvent::Kind::scope, "optimizer", 20, 21),
    // Work of one rank outside of a step does not count.
    event(TraceEvent::Kind::scope, "backward alone", 50, 56),
    event(TraceEvent::Kind::compute, "f", 50, 56),
    event(TraceEvent::Kind::scope, "forward", 100, 106),
    event(TraceEvent::Kind::scope, "backward", 106, 120),
    event(TraceEvent::Kind::compute, "f", 110, 118),
    event(TraceEvent::Kind::communication, "all_reduce", 116, 120, 5),
    event(TraceEvent::Kind::communication, "all_reduce", 111, 113, 7),
    event(TraceEvent::Kind::scope, "optimizer", 120, 123),
};

}  // namespace samples
