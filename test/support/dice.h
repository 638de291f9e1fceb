#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace ddp::test {

/// Random numbers determined by a seed.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}

  int below(int limit) { return static_cast<int>(random_() % limit); }
  bool chance(int percent) { return below(100) < percent; }

  template <class Item>
  Item any_of(const std::vector<Item>& items) {
    return items[below(static_cast<int>(items.size()))];
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace ddp::test
