#pragma once

#include <cstddef>
#include <functional>

namespace dp::detail {

/// Runs task(0) to task(count - 1), each in a thread of its own but for the
/// first, which runs here. Waits for all of them, then throws what failed
/// first.
void run_in_threads(size_t count, const std::function<void(size_t)>& task);

}  // namespace dp::detail
