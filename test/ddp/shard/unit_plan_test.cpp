#include "ddp/shard/unit_plan.h"

#include "test/support/catch.h"

namespace ddp::detail {
namespace unit_plan_test {

TEST_CASE("units: parameters in their order, until the cap", "[shard]") {
  const auto units =
      plan_units({{100}, {100}, {100}, {1000}, {31}, {1}}, 1000, 2);
  REQUIRE(units.size() == 4);
  CHECK(units[0].parameters == std::vector<size_t>{0, 1});
  CHECK(units[0].offsets == std::vector<int64_t>{0, 128});
  CHECK(units[1].parameters == std::vector<size_t>{2});
  CHECK(units[2].parameters == std::vector<size_t>{3, 4});
  CHECK(units[3].parameters == std::vector<size_t>{5});
}

TEST_CASE("units: a dtype and requires_grad have units of their own",
          "[shard]") {
  const auto units = plan_units({{10},
                                 {10, c10::kDouble},
                                 {10},
                                 {10, c10::kFloat, false},
                                 {10, c10::kDouble},
                                 {10, c10::kFloat, false}},
                                1 << 20,
                                3);
  REQUIRE(units.size() == 3);
  CHECK(units[0].parameters == std::vector<size_t>{0, 2});
  CHECK(units[1].parameters == std::vector<size_t>{1, 4});
  CHECK(units[2].parameters == std::vector<size_t>{3, 5});
  CHECK(units[0].trains);
  CHECK_FALSE(units[2].trains);
}

TEST_CASE("units: slabs of whole pages hold all elements", "[shard]") {
  const int ranks = GENERATE(1, 2, 3, 7);
  const int64_t numel = GENERATE(0, 1, 4096, 4097, 1'000'003);
  const auto units = plan_units({{numel}}, 1 << 30, ranks);
  REQUIRE(units.size() == 1);
  CHECK(units[0].slab > 0);
  CHECK(units[0].slab % kSlabAlign == 0);
  CHECK(units[0].slab * ranks >= numel);
  CHECK((units[0].slab - kSlabAlign) * ranks < std::max<int64_t>(numel, 1));
}

TEST_CASE("units: the default cap is a sixteenth, within limits", "[shard]") {
  constexpr int64_t kMebibyte = 1 << 20;
  CHECK(default_unit_cap(0) == kMebibyte);
  CHECK(default_unit_cap(64 * kMebibyte) == 4 * kMebibyte);
  CHECK(default_unit_cap(int64_t{1} << 40) == 50 * kMebibyte);
}

}  // namespace unit_plan_test
}  // namespace ddp::detail
