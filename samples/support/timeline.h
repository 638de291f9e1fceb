#pragma once

#include <string>
#include <vector>

namespace samples {

/// Pure: the ranks' traces (Chrome's JSON format, as Kineto writes it) as one,
/// in which every rank is a process "rank 0", "rank 1", ... with its threads
/// below it. Times stay as they are: ranks of one host have one clock.
///
/// @throws c10::Error when a text is no trace.
std::string merge_timelines(const std::vector<std::string>& ranks);

}  // namespace samples
