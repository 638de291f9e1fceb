#pragma once

#include <cstddef>
#include <functional>

namespace dp::detail {

/// Runs task(0) to task(count - 1) concurrently: task(0) on the calling thread,
/// every other task on a thread of its own. Blocks until all have finished,
/// then rethrows the first exception.
void run_in_threads(size_t count, const std::function<void(size_t)>& task);

}  // namespace dp::detail
