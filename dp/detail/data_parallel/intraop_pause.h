#pragma once

#include <functional>

namespace dp::detail {

/// Runs `work` in the calling thread while the caller's OpenMP threads sleep.
///
/// Left alone, they spin for milliseconds after an operator, on the cores that
/// `work` has other threads for. In `work` the caller counts as
/// inside a parallel region, so operators that it runs itself use one thread.
/// Throws what `work` throws.
void while_intraop_threads_sleep(const std::function<void()>& work);

}  // namespace dp::detail
