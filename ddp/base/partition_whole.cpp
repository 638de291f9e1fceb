#include "ddp/base/partition_whole.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace ddp::detail {

std::vector<int> partition_whole(const std::vector<int64_t>& sizes,
                                 std::vector<int64_t>& loads) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return sizes[a] > sizes[b];
  });
  std::vector<int> owners(sizes.size());
  for (const size_t i : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    owners[i] = static_cast<int>(least - loads.begin());
    *least += sizes[i];
  }
  return owners;
}

}  // namespace ddp::detail
