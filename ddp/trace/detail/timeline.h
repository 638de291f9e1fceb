#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddp/trace/trace.h"

namespace ddp::detail {

/// Tracks that are no threads: of steps, and from kFirstSharedTrack on of
/// sums in shared memory. Linux's ids of threads are below 2^22.
inline constexpr int64_t kStepTrack = int64_t{1} << 22;
inline constexpr int64_t kFirstSharedTrack = kStepTrack + 1;

/// Pure: returns one rank's events as items of Chrome's JSON trace format,
/// separated by commas: the names of the rank and of its tracks, then one
/// complete event ("X") each.
///
/// @param origin  time that becomes 0, in nanoseconds. Needed because a
///   viewer's numbers keep nanosecond precision only for some hours.
std::string timeline_items(const std::vector<TraceEvent>& events,
                           int rank,
                           int64_t origin);

/// Pure: joins the items of all ranks into a complete trace.
std::string timeline(const std::vector<std::string>& items);

}  // namespace ddp::detail
