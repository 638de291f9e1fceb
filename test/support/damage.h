#pragma once

#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace ddp::test {

using Random = std::mt19937_64;

/// Returns a random number below `limit`, which must not be 0.
size_t below(Random& random, size_t limit);

/// Returns a random element of `items`, which must not be empty.
template <class Item>
const Item& any_of(const std::vector<Item>& items, Random& random) {
  return items[below(random, items.size())];
}

/// Corrupts `bytes` in one to four places: flips a bit, changes a byte,
/// removes, duplicates or moves bytes, or overwrites bytes with one of `texts`.
void damage(std::string& bytes,
            Random& random,
            const std::vector<std::string>& texts);

}  // namespace ddp::test
