#pragma once

#include <cstdint>
#include <functional>

namespace ddp::detail {

/// Calls `work` with 0 to `tasks - 1` on LibTorch's intra-op threads; the
/// calling thread executes the first tasks. It executes all of them if there
/// are no other threads, or inside a parallel region. Operators that `work`
/// calls use one thread.
/// @throws the exceptions of `work`.
///
/// The other threads do not inherit thread-local modes of the caller (grad
/// mode, dispatch guards).
void in_intraop_threads(int64_t tasks,
                        const std::function<void(int64_t)>& work);

}  // namespace ddp::detail
