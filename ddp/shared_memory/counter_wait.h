#pragma once

#include "ddp/shared_memory/sum_board.h"

namespace ddp::detail {

/// Waits until the counter has reached `number`, at most 50 ms. First looks
/// again and again for about as long as waking a thread takes, if `spins`.
/// Returns whether the number was reached; may return false early.
bool wait_for_counter(RankCounter& counter, SumNumber number, bool spins);

/// Wakes the waiting ranks, in all processes.
void wake_sleepers(RankCounter& counter);

/// Sets the counter and wakes the ranks that wait for it.
void advance_counter(RankCounter& counter, SumNumber number);

}  // namespace ddp::detail
