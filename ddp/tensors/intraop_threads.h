#pragma once

#include <cstdint>
#include <functional>

namespace ddp::detail {

/// Calls `work` with 0 to `tasks - 1`, shared out among LibTorch's intra-op
/// threads; the caller takes the first ones. It has them all where there are no
/// more threads, or inside of a parallel region. Within `work` an operator uses
/// one thread. Throws what `work` throws.
///
/// Thread-local modes of the caller (grad mode, guards of dispatch) are not
/// those of the other threads.
void in_intraop_threads(int64_t tasks,
                        const std::function<void(int64_t)>& work);

}  // namespace ddp::detail
