#pragma once

#include <cstdint>
#include <random>

namespace ddp::detail {

/// Draws a sequence of seeds below 1e9. Equals numpy's
/// RandomState(seed).randint(1'000'000'000), with which PyTorch's PowerSGD
/// seeds the random matrices of its steps.
class SeedDraws {
 public:
  explicit SeedDraws(uint32_t seed) : random_(seed) {}

  uint32_t next();

  /// Returns the number of seeds drawn so far.
  int64_t count() const { return count_; }

 private:
  std::mt19937 random_;
  int64_t count_ = 0;
};

}  // namespace ddp::detail
