#pragma once

#include <string>
#include <vector>

#include "ddp/trace/trace.h"

namespace ddp::detail {

/// Pure: one rank's events as items of a trace in Chrome's JSON format, with
/// commas between them: its name, then a complete event ("X") each.
///
/// @param origin  what the times are counted from, in nanoseconds: a viewer's
///   numbers hold no more than some hours to the nanosecond.
std::string timeline_items(const std::vector<TraceEvent>& events,
                           int rank,
                           int64_t origin);

/// Pure: the items of all ranks as a whole trace.
std::string timeline(const std::vector<std::string>& items);

}  // namespace ddp::detail
