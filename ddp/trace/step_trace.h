#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "ddp/trace/trace.h"

namespace ddp::detail {

/// Number of steps in the file of DDP_TRACE. The first one is not in the line
/// that rank 0 prints.
inline constexpr int kTracedSteps = 6;

/// Does nothing without DDP_TRACE. Otherwise counts a step of `model`, which
/// begins with this call, which waits until a GPU has ended the step before.
/// The first call in a process starts a trace of the calling thread, unless a
/// profiler of the program runs there. The trace ends with the first call after
/// `kTracedSteps` steps, with `end_step_trace`, or with the thread, also by
/// exit(). Its end appends the events to the file; rank 0 prints where the time
/// of a step goes. Errors become warnings.
///
/// Thread contract: calls on other threads than that of the first call do
/// nothing.
void trace_step(const void* model, c10::Device device) noexcept;

/// Ends the trace of `model` if this thread runs one. Null: of any model.
void end_step_trace(const void* model) noexcept;

/// Pure: returns a sentence on where the time of a step goes. The times are
/// means over the `count` steps in `steps`. A rank computes during
/// `TraceEvent::Kind::compute`, on the CPU also during forwards of wrappers.
std::string step_report(const std::vector<TraceEvent>& events,
                        const TimeSpan& steps,
                        int64_t count,
                        const c10::Device& device);

}  // namespace ddp::detail
