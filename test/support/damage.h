#pragma once

#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace ddp::test {

using Random = std::mt19937_64;

/// A number below `limit`, which is not 0.
size_t below(Random& random, size_t limit);

/// One of `items`, which are some.
template <class Item>
const Item& any_of(const std::vector<Item>& items, Random& random) {
  return items[below(random, items.size())];
}

/// Changes one to four places of `bytes`: a bit or a byte becomes another one,
/// bytes go, come twice or elsewhere, or one of `texts` is written over them.
void damage(std::string& bytes,
            Random& random,
            const std::vector<std::string>& texts);

}  // namespace ddp::test
