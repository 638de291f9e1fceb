#include "ddp/exchanges/detail/seed_draws.h"

namespace ddp::detail {

uint32_t SeedDraws::next() {
  constexpr uint32_t kLimit = 1'000'000'000;
  constexpr uint32_t kMask = (1U << 30) - 1;
  ++count_;
  uint32_t number = kLimit;
  while (number >= kLimit) {
    number = static_cast<uint32_t>(random_()) & kMask;
  }
  return number;
}

}  // namespace ddp::detail
