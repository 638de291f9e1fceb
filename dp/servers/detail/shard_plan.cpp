#include "dp/servers/detail/shard_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace dp::detail {

std::vector<std::vector<size_t>> plan_shards(const std::vector<int64_t>& bytes,
                                             size_t servers) {
  std::vector<size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return bytes[a] > bytes[b];
  });
  // Compare bytes first, then counts, so that empty parameters are also spread.
  using Load = std::pair<int64_t, size_t>;
  std::vector<Load> loads(servers);
  std::vector<std::vector<size_t>> shards(servers);
  for (const size_t parameter : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    least->first += bytes[parameter];
    ++least->second;
    shards[static_cast<size_t>(least - loads.begin())].push_back(parameter);
  }
  for (auto& shard : shards) {
    std::sort(shard.begin(), shard.end());
  }
  return shards;
}

}  // namespace dp::detail
