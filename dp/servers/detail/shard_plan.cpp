#include "dp/servers/detail/shard_plan.h"

#include <algorithm>

#include "ddp/base/partition_whole.h"

namespace dp::detail {

std::vector<std::vector<size_t>> plan_shards(std::vector<int64_t> bytes,
                                             size_t servers) {
  // A byte for each empty parameter, so that these are also spread.
  for (int64_t& size : bytes) {
    size = std::max<int64_t>(size, 1);
  }
  std::vector<int64_t> loads(servers);
  const auto owners = ddp::detail::partition_whole(bytes, loads);
  std::vector<std::vector<size_t>> shards(servers);
  for (size_t parameter = 0; parameter < owners.size(); ++parameter) {
    shards[static_cast<size_t>(owners[parameter])].push_back(parameter);
  }
  return shards;
}

}  // namespace dp::detail
