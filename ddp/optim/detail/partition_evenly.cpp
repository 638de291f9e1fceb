#include "ddp/optim/detail/partition_evenly.h"

#include <algorithm>
#include <numeric>

namespace ddp::detail {
namespace {

int64_t divide_up(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

int64_t sum_of(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace

std::vector<Run> partition_evenly(const std::vector<int64_t>& sizes,
                                  std::vector<int64_t>& elements) {
  const size_t last = elements.size() - 1;
  const int64_t share = divide_up(sum_of(sizes) + sum_of(elements),
                                  static_cast<int64_t>(elements.size()));
  std::vector<Run> runs;
  size_t rank = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    int64_t first = 0;
    do {
      while (rank < last && elements[rank] >= share) {
        ++rank;
      }
      int64_t numel = sizes[i] - first;
      if (rank < last) {
        const int64_t room = share - elements[rank];
        numel = std::min(numel, divide_up(room, kRunElements) * kRunElements);
      }
      runs.push_back({i, first, numel, static_cast<int>(rank)});
      elements[rank] += numel;
      first += numel;
    } while (first < sizes[i]);
  }
  return runs;
}

}  // namespace ddp::detail
