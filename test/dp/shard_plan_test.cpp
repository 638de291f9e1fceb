#include "dp/servers/detail/shard_plan.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "test/support/catch.h"

namespace dp::detail {
namespace shard_plan_test {

using Shards = std::vector<std::vector<size_t>>;

TEST_CASE("the largest first, to the server with the least", "[shard_plan]") {
  CHECK(plan_shards({4, 3, 2, 1}, 1) == Shards{{0, 1, 2, 3}});
  CHECK(plan_shards({4, 3, 2, 1}, 2) == Shards{{0, 3}, {1, 2}});
  CHECK(plan_shards({1, 100, 1, 1}, 2) == Shards{{1}, {0, 2, 3}});
  // Equal sizes are distributed in turn, also parameters without elements.
  CHECK(plan_shards({8, 8, 8, 8, 8}, 2) == Shards{{0, 2, 4}, {1, 3}});
  CHECK(plan_shards({0, 0, 0}, 3) == Shards{{0}, {1}, {2}});
}

TEST_CASE("every parameter is on one server, balanced", "[shard_plan]") {
  const size_t servers = GENERATE(1, 2, 3, 7);
  std::mt19937_64 random(servers);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> bytes(servers + random() % 40);
    for (auto& size : bytes) {
      size = static_cast<int64_t>(random() % 1000);
    }
    const auto shards = plan_shards(bytes, servers);
    REQUIRE(shards.size() == servers);
    std::vector<int> seen(bytes.size());
    const int64_t total =
        std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
    const int64_t largest = *std::max_element(bytes.begin(), bytes.end());
    for (const auto& shard : shards) {
      CHECK_FALSE(shard.empty());
      CHECK(std::is_sorted(shard.begin(), shard.end()));
      int64_t load = 0;
      for (const size_t member : shard) {
        ++seen[member];
        load += bytes[member];
      }
      CHECK(load * static_cast<int64_t>(servers) <=
            total + largest * static_cast<int64_t>(servers));
    }
    CHECK(std::all_of(
        seen.begin(), seen.end(), [](int count) { return count == 1; }));
  }
}

}  // namespace shard_plan_test
}  // namespace dp::detail
