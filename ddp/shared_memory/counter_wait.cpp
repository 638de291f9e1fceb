#include "ddp/shared_memory/counter_wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <ctime>

namespace ddp::detail {
namespace {

/// A futex call of another process returns after 30 to 50 us.
constexpr std::chrono::microseconds kSpin{40};

constexpr timespec kPatience{0, 50'000'000};

void call_futex(RankCounter& counter,
                int operation,
                uint32_t value,
                const timespec* limit) {
  static_assert(sizeof(counter.value) == sizeof(uint32_t));
  ::syscall(SYS_futex, &counter.value, operation, value, limit, nullptr, 0);
}

}  // namespace

bool wait_for_counter(RankCounter& counter, SumNumber number, bool spins) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  while (spins && std::chrono::steady_clock::now() < end) {
    if (has_reached(counter, number)) {
      return true;
    }
  }
  counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const SumNumber seen = counter.value.load(std::memory_order_seq_cst);
  if (!has_reached(seen, number)) {
    call_futex(counter, FUTEX_WAIT, seen, &kPatience);
  }
  counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return has_reached(counter, number);
}

void wake_sleepers(RankCounter& counter) {
  if (counter.sleepers.load(std::memory_order_seq_cst) > 0) {
    call_futex(counter, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

/// The order is sequentially consistent, because a rank that falls asleep
/// counts itself first and then looks at the counter once more.
void advance_counter(RankCounter& counter, SumNumber number) {
  counter.value.store(number, std::memory_order_seq_cst);
  wake_sleepers(counter);
}

}  // namespace ddp::detail
