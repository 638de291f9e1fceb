#include "ddp/shared_memory/counter_wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace ddp::detail {
namespace {

/// A futex call of another process returns after 30 to 50 us.
constexpr std::chrono::microseconds kSpin{40};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

bool spin(const RankCounter& counter, SumNumber number) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (has_reached(counter.value.load(std::memory_order_acquire), number)) {
        return true;
      }
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

void* word_of(RankCounter& counter) {
  static_assert(sizeof(counter.value) == sizeof(uint32_t));
  return &counter.value;
}

}  // namespace

bool wait_for_counter(RankCounter& counter,
                      SumNumber number,
                      bool spins,
                      std::chrono::milliseconds patience) {
  if (spins && spin(counter, number)) {
    return true;
  }
  counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const SumNumber seen = counter.value.load(std::memory_order_seq_cst);
  if (!has_reached(seen, number)) {
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(patience);
    const timespec limit{
        static_cast<time_t>(seconds.count()),
        static_cast<long>(
            std::chrono::nanoseconds(patience - seconds).count())};
    ::syscall(
        SYS_futex, word_of(counter), FUTEX_WAIT, seen, &limit, nullptr, 0);
  }
  counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return has_reached(counter.value.load(std::memory_order_acquire), number);
}

void wake_sleepers(RankCounter& counter) {
  if (counter.sleepers.load(std::memory_order_seq_cst) > 0) {
    ::syscall(
        SYS_futex, word_of(counter), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

bool has_core_for_each(int ranks) {
  return ::sysconf(_SC_NPROCESSORS_ONLN) >= ranks;
}

}  // namespace ddp::detail
