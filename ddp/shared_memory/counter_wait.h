#pragma once

#include <chrono>

#include "ddp/shared_memory/sum_board.h"

namespace ddp::detail {

/// Waits until the counter has reached `number`, at most `patience`. First
/// looks again and again for about as long as waking a thread takes, if
/// `spins`. Returns whether the number was reached; may return false early.
bool wait_for_counter(RankCounter& counter,
                      SumNumber number,
                      bool spins,
                      std::chrono::milliseconds patience);

/// Wakes the waiting ranks, in all processes.
void wake_sleepers(RankCounter& counter);

/// Whether this machine has a core for each of so many ranks. The ranks may be
/// allowed to use fewer; a spin then costs its short time.
bool has_core_for_each(int ranks);

}  // namespace ddp::detail
