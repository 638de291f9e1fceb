#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddp/trace/trace.h"

namespace ddp::detail {

/// Name of the scope of a wrapper's forward, as in PyTorch.
inline constexpr const char* kForwardScope = "DistributedDataParallel.forward";

/// Pure: returns a sentence on where the time of a step goes. The times are
/// means over the `count` steps in `steps`. A rank computes during
/// `TraceEvent::Kind::compute`, on the CPU also during forwards of wrappers.
std::string step_report(const std::vector<TraceEvent>& events,
                        const TimeSpan& steps,
                        int64_t count,
                        const c10::Device& device);

}  // namespace ddp::detail
