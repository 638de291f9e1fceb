#include "ddp/reduce/bucket_plan.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "test/support/catch.h"

namespace ddp::detail {
namespace bucket_plan_test {

constexpr int64_t kFloatBytes = 4;

GradientSpec floats(int64_t numel) {
  GradientSpec spec;
  spec.numel = numel;
  return spec;
}

std::vector<size_t> in_order(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

TEST_CASE("a bucket closes when it has reached its cap", "[bucket_plan]") {
  const std::vector<GradientSpec> gradients{
      floats(10), floats(10), floats(10), floats(10), floats(10)};
  const BucketCaps caps{10 * kFloatBytes, 20 * kFloatBytes};
  CHECK(plan_buckets(gradients, in_order(5), caps) ==
        BucketPlan{{0}, {1, 2}, {3, 4}});
}

TEST_CASE("buckets over Gloo grow with the number of ranks", "[bucket_plan]") {
  constexpr int64_t kMiB = 1 << 20;
  CHECK(default_bucket_cap("nccl", 2) == c10d::kDefaultBucketBytesCap);
  CHECK(default_bucket_cap("gloo", 1) == 4 * kMiB);
  CHECK(default_bucket_cap("gloo", 8) == 4 * kMiB);
  CHECK(default_bucket_cap("gloo", 9) == 9 * kMiB / 2);
  CHECK(default_bucket_cap("gloo", 32) == 16 * kMiB);
  CHECK(default_bucket_cap("gloo", 1000) == 25 * kMiB);
}

TEST_CASE("each dtype has a first bucket", "[bucket_plan]") {
  std::vector<GradientSpec> gradients(10, floats(10));
  gradients[0].dtype = c10::kHalf;
  const BucketCaps caps{5 * kFloatBytes, 30 * kFloatBytes};
  CHECK(plan_buckets(gradients, in_order(10), caps) ==
        BucketPlan{{0}, {1}, {2, 3, 4}, {5, 6, 7}, {8, 9}});
}

TEST_CASE("a gradient larger than the cap closes its bucket", "[bucket_plan]") {
  const std::vector<GradientSpec> gradients{
      floats(1), floats(1000), floats(1), floats(1)};
  const BucketCaps caps{100, 100};
  CHECK(plan_buckets(gradients, in_order(4), caps) ==
        BucketPlan{{0, 1}, {2, 3}});
}

TEST_CASE(
    "gradients of other dtypes get buckets of their own, sorted by when "
    "they fill",
    "[bucket_plan]") {
  std::vector<GradientSpec> gradients{
      floats(1), floats(1), floats(1), floats(1)};
  gradients[0].dtype = c10::kHalf;
  gradients[2].dtype = c10::kHalf;
  const BucketCaps caps{1 << 20, 1 << 20};
  CHECK(plan_buckets(gradients, in_order(4), caps) ==
        BucketPlan{{0, 2}, {1, 3}});
  CHECK(plan_buckets(gradients, {3, 0, 2, 1}, caps) ==
        BucketPlan{{0, 2}, {3, 1}});
}

TEST_CASE("gradients of other devices get buckets of their own",
          "[bucket_plan]") {
  std::vector<GradientSpec> gradients{floats(1), floats(1), floats(1)};
  gradients[1].device = c10::Device(c10::kCUDA, 1);
  CHECK(plan_buckets(gradients, in_order(3), {1 << 20, 1 << 20}) ==
        BucketPlan{{1}, {0, 2}});
}

TEST_CASE("a sparse gradient has a bucket of its own", "[bucket_plan]") {
  std::vector<GradientSpec> gradients{
      floats(1), floats(1), floats(1), floats(1)};
  gradients[1].alone = true;
  gradients[3].alone = true;
  const BucketCaps caps{1 << 20, 1 << 20};
  CHECK(plan_buckets(gradients, in_order(4), caps) ==
        BucketPlan{{1}, {0, 2}, {3}});
}

TEST_CASE("no gradient is lost or doubled", "[bucket_plan]") {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<GradientSpec> gradients(random() % 40);
    for (auto& gradient : gradients) {
      gradient = floats(random() % 100);
      gradient.dtype = random() % 3 == 0 ? c10::kDouble : c10::kFloat;
    }
    auto order = in_order(gradients.size());
    std::shuffle(order.begin(), order.end(), random);
    const auto plan = plan_buckets(gradients,
                                   order,
                                   {static_cast<int64_t>(random() % 300),
                                    static_cast<int64_t>(random() % 1000)});
    std::vector<size_t> all;
    for (const auto& bucket : plan) {
      REQUIRE_FALSE(bucket.empty());
      for (const size_t member : bucket) {
        REQUIRE(gradients[member].dtype == gradients[bucket[0]].dtype);
        all.push_back(member);
      }
    }
    std::sort(all.begin(), all.end());
    REQUIRE(all == in_order(gradients.size()));
  }
}

TEST_CASE("one dtype is planned as c10d plans it", "[bucket_plan][oracle]") {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    std::vector<at::Tensor> tensors;
    std::vector<GradientSpec> gradients;
    for (size_t i = 0, n = 1 + random() % 40; i < n; ++i) {
      const int64_t numel = 1 + random() % 100;
      tensors.push_back(at::empty({numel}));
      gradients.push_back(floats(numel));
    }
    const BucketCaps caps{1 + static_cast<int64_t>(random() % 700),
                          1 + static_cast<int64_t>(random() % 700)};
    const auto [expected, limits] = c10d::compute_bucket_assignment_by_size(
        tensors,
        {static_cast<size_t>(caps.first), static_cast<size_t>(caps.later)});
    CHECK(plan_buckets(gradients, in_order(tensors.size()), caps) == expected);
  }
}

TEST_CASE("a plan becomes numbers and back", "[bucket_plan]") {
  const BucketPlan plan{{3}, {0, 2}, {1}};
  CHECK(to_numbers(plan) == std::vector<int64_t>{7, 0, 5, 3});
  CHECK(plan_of(to_numbers(plan), 4) == plan);
  CHECK(plan_of(to_numbers(plan), 5) == plan);  // gradient 4 is never used
  CHECK(plan_of(std::vector<int64_t>{}, 0).empty());
}

// An aborted collective leaves numbers like these.
TEST_CASE("numbers that are no plan", "[bucket_plan]") {
  using Row = std::pair<std::vector<int64_t>, std::string>;
  const auto row = GENERATE(values<Row>(
      {{{7, 0, 5, 8}, "got the index 4"},
       {{7, -2, 5, 3}, "got the index -1"},
       {{7, std::numeric_limits<int64_t>::min(), 5, 3}, "got the index -"},
       {{7, std::numeric_limits<int64_t>::max(), 5, 3}, "got the index 46"},
       {{7, 0, 0, 3}, "got the index 0 twice"},
       {{7, 0, 5, 2}, "whose last bucket ends"}}));
  CHECK_THROWS_WITH(plan_of(row.first, 4), Catch::Contains(row.second));
}

}  // namespace bucket_plan_test
}  // namespace ddp::detail
