// Which waits of a job's ranks can never end, as a pure function.
#include "ddp/job/detail/wait_judge.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "test/support/catch.h"

namespace ddp {
namespace wait_judge_test {

using Catch::Contains;
using detail::find_dead_waits;
using detail::RankReport;
using Reports = std::map<int, RankReport>;
using Numbers = std::vector<std::pair<std::string, uint64_t>>;

constexpr const char* kAll = "0-3";

detail::WaitReport wait_in(const std::string& group,
                           uint64_t number,
                           const std::string& what,
                           const std::string& members = kAll,
                           const std::string& call = "allreduce of 8 Float") {
  return {group, members, number, call, what};
}

/// A rank that waits, with the number of the last collective of each group.
RankReport waits(const detail::WaitReport& wait, const Numbers& started) {
  RankReport report;
  report.waits = {wait};
  for (const auto& [group, number] : started) {
    report.groups.push_back({group, number, 0});
  }
  return report;
}

RankReport computes(const Numbers& started) {
  RankReport report;
  for (const auto& [group, number] : started) {
    report.groups.push_back({group, number, -1});
  }
  return report;
}

RankReport leaves(const Numbers& started) {
  auto report = computes(started);
  report.leaves = true;
  return report;
}

TEST_CASE("a wait for ranks that compute, or say nothing, is no dead one",
          "[waits]") {
  const auto first = waits(wait_in("world", 3, "barrier"), {{"world", 3}});
  CHECK_FALSE(find_dead_waits({}));
  CHECK_FALSE(find_dead_waits({{0, first}}));
  CHECK_FALSE(find_dead_waits({{0, first}, {1, computes({{"world", 2}})}}));
  CHECK_FALSE(find_dead_waits({{0, first}, {1, first}, {2, first}}));
}

TEST_CASE("a collective that all have started is running", "[waits]") {
  const auto same = waits(wait_in("world", 3, "barrier"), {{"world", 3}});
  CHECK_FALSE(find_dead_waits({{0, same}, {1, same}, {2, same}, {3, same}}));
  const auto ahead = waits(wait_in("world", 3, "barrier"), {{"world", 7}});
  CHECK_FALSE(find_dead_waits({{0, same}, {1, ahead}, {2, same}, {3, ahead}}));
}

TEST_CASE("one number, two calls or sizes", "[waits]") {
  const auto bucket =
      waits(wait_in("world", 4, "all-reduce of gradient bucket 1 of pass 4"),
            {{"world", 4}});
  const auto call = GENERATE(
      "allreduce of 9 Float", "allreduce of 8 Double", "broadcast of 8 Float");
  const auto other =
      waits(wait_in("world", 4, "reduce_tensor", kAll, call), {{"world", 4}});
  const auto dead = find_dead_waits({{0, bucket}, {1, other}, {2, bucket}});
  REQUIRE(dead);
  CHECK(dead->groups == std::vector<std::string>{"world"});
  CHECK_THAT(dead->error,
             Contains("ranks 0, 2 wait in all-reduce of gradient bucket 1 of "
                      "pass 4, rank 1 in reduce_tensor: ") &&
                 Contains("allreduce of 8 Float") && Contains(call) &&
                 Contains("ddp::NoSyncGuard"));
}

TEST_CASE("a call that a rank has started and does not wait for yet",
          "[waits]") {
  auto ahead =
      waits(wait_in("world", 6, "all-gather", kAll, "allgather of 1 Long"),
            {{"world", 6}});
  ahead.groups[0].calls = {
      "allreduce of 8 Float", "allreduce of 9 Float", "allgather of 1 Long"};
  const auto behind = [](uint64_t number, const std::string& call) {
    auto report = waits(wait_in("world", number, "reduce_tensor", kAll, call),
                        {{"world", number}});
    report.groups[0].calls = {call};
    return report;
  };
  CHECK_FALSE(
      find_dead_waits({{0, ahead}, {1, behind(4, "allreduce of 8 Float")}}));
  CHECK_FALSE(
      find_dead_waits({{0, ahead}, {1, behind(5, "allreduce of 9 Float")}}));
  CHECK_FALSE(find_dead_waits({{0, ahead}, {1, behind(3, "barrier")}}));
  const auto dead =
      find_dead_waits({{0, ahead}, {1, behind(5, "allreduce of 8 Float")}});
  REQUIRE(dead);
  CHECK(dead->groups == std::vector<std::string>{"world"});
  CHECK_THAT(dead->error,
             Contains("rank 0 waits in all-gather, rank 1 in reduce_tensor: "
                      "collective 5 of group world differs: on rank 0: "
                      "allreduce of 9 Float; on rank 1: allreduce of 8 Float. "
                      "All ranks"));
}

TEST_CASE("the same calls with other names are the same calls", "[waits]") {
  CHECK_FALSE(
      find_dead_waits({{0, waits(wait_in("world", 4, "a"), {{"world", 4}})},
                       {1, waits(wait_in("world", 4, "b"), {{"world", 4}})}}));
}

TEST_CASE("two groups in two orders", "[waits]") {
  const auto first =
      waits(wait_in("a", 1, "reduce_tensor"), {{"a", 1}, {"b", 0}});
  const auto second = waits(wait_in("b", 1, "barrier"), {{"a", 0}, {"b", 1}});
  const auto dead = find_dead_waits({{0, first}, {1, second}});
  REQUIRE(dead);
  CHECK(dead->groups == std::vector<std::string>{"a", "b"});
  CHECK_THAT(dead->error,
             Contains("rank 0 waits in reduce_tensor, rank 1 in barrier: ") &&
                 Contains("never meet") && !Contains("NoSyncGuard"));
  SECTION("a third rank waits for one of them") {
    const auto third = waits(wait_in("c", 1, "gather", "1-2"), {{"c", 1}});
    auto reports = Reports{{0, first}, {1, second}, {2, third}};
    reports[1].groups.push_back({"c", 0, 0});
    const auto all = find_dead_waits(reports);
    REQUIRE(all);
    CHECK(all->groups == std::vector<std::string>{"a", "b", "c"});
    CHECK_THAT(all->error, Contains("rank 2 in gather"));
  }
  SECTION("one of them computes on another thread") {
    auto busy = second;
    busy.groups[0].blocked_by = -1;  // its thread for group a does not wait
    CHECK_FALSE(find_dead_waits({{0, first}, {1, busy}}));
  }
}

TEST_CASE("a group is made by one rank, and another waits", "[waits]") {
  const auto maker =
      waits(wait_in("a", 0, "new_group", "0-1", "new_group"), {{"world", 2}});
  const auto barrier = wait_in("world", 3, "barrier", "0-1");
  SECTION("for the maker") {
    const auto other = waits(barrier, {{"world", 3}});
    const auto dead = find_dead_waits({{0, maker}, {1, other}});
    REQUIRE(dead);
    CHECK(dead->groups == std::vector<std::string>{"a", "world"});
    CHECK_THAT(dead->error,
               Contains("rank 0 waits in new_group, rank 1 in barrier: "));
  }
  SECTION("and has made the group") {
    const auto other = waits(barrier, {{"world", 3}, {"a", 0}});
    CHECK_FALSE(find_dead_waits({{0, maker}, {1, other}}));
  }
  SECTION("for nothing") {
    CHECK_FALSE(find_dead_waits({{0, maker}, {1, computes({{"world", 3}})}}));
  }
  SECTION("for a group of other members") {
    const auto other =
        waits(wait_in("a", 0, "new_group", "0-2", "another"), {{"world", 2}});
    const auto dead = find_dead_waits({{0, maker}, {1, other}});
    REQUIRE(dead);
    CHECK(dead->groups == std::vector<std::string>{"a"});
  }
  SECTION("for all ranks to leave") {
    const auto dead =
        find_dead_waits({{0, maker}, {1, leaves({{"world", 3}})}});
    REQUIRE(dead);
    CHECK_THAT(dead->error, Contains("destroy_process_group"));
  }
}

TEST_CASE("a circle of four ranks, and one that is missing", "[waits]") {
  const auto wait_for = [](int rank) {
    const int next = (rank + 1) % 4;
    const auto pair = [](int a, int b) {
      return std::to_string(std::min(a, b)) + std::to_string(std::max(a, b));
    };
    const auto own = pair(rank, next);
    const auto before = pair(rank, (rank + 3) % 4);
    return waits(wait_in(own,
                         1,
                         "barrier",
                         detail::member_ranges(
                             {std::min(rank, next), std::max(rank, next)})),
                 {{own, 1}, {before, 0}});
  };
  Reports reports;
  for (int rank = 0; rank < 4; ++rank) {
    reports[rank] = wait_for(rank);
  }
  const auto dead = find_dead_waits(reports);
  REQUIRE(dead);
  CHECK(dead->groups.size() == 4);
  CHECK_THAT(dead->error, Contains("ranks 0-3 wait in barrier: "));
  reports[2] = computes({{"12", 0}, {"23", 0}});
  CHECK_FALSE(find_dead_waits(reports));
}

TEST_CASE("a rank that leaves starts nothing more", "[waits]") {
  const auto bucket =
      waits(wait_in("world", 3, "reduce_tensor"), {{"world", 3}});
  const auto dead = find_dead_waits({{0, bucket}, {1, leaves({{"world", 2}})}});
  REQUIRE(dead);
  CHECK_THAT(dead->error,
             Contains("rank 0 waits in reduce_tensor, rank 1 in "
                      "destroy_process_group"));
  CHECK_FALSE(find_dead_waits({{0, bucket}, {1, leaves({{"world", 3}})}}));
  SECTION("nor does one that never used the group") {
    CHECK(find_dead_waits({{0, bucket}, {1, leaves({})}}));
  }
  SECTION("a rank of another group is none of its members") {
    const auto pair =
        waits(wait_in("pair", 3, "reduce_tensor", "0-0,2-2"), {{"pair", 3}});
    CHECK_FALSE(find_dead_waits({{0, pair}, {1, leaves({{"world", 2}})}}));
  }
}

TEST_CASE("all leave, and one has started more", "[waits]") {
  CHECK_FALSE(find_dead_waits(
      {{0, leaves({{"world", 6}})}, {1, leaves({{"world", 6}})}}));
  const auto dead = find_dead_waits({{0, leaves({{"world", 6}})},
                                     {1, leaves({{"world", 6}})},
                                     {2, leaves({{"world", 7}})}});
  REQUIRE(dead);
  CHECK(dead->groups == std::vector<std::string>{"world"});
  CHECK_THAT(dead->error,
             Contains("collective 7 of group world has been started by rank 2, "
                      "but not by rank 0"));
}

TEST_CASE("a leaving rank ends collectives without a waiter", "[waits]") {
  CHECK(find_dead_waits(
      {{0, computes({{"world", 3}})}, {1, leaves({{"world", 2}})}}));
  CHECK_FALSE(find_dead_waits(
      {{0, computes({{"world", 2}})}, {1, leaves({{"world", 2}})}}));
}

TEST_CASE("a report goes through a text", "[waits]") {
  auto sent = waits(wait_in("world", 3, "all-reduce: 1 of 2", "0-3,7-7"),
                    {{"world", 3}, {"group_0", 12}});
  sent.groups[1].blocked_by = -1;
  sent.groups[0].calls = {"barrier", "allreduce of 8 Float"};
  sent.leaves = GENERATE(false, true);
  const auto text = detail::to_text(sent);
  const auto got = detail::parse_rank_report(text);
  REQUIRE(got);
  CHECK(detail::to_text(*got) == text);
  CHECK(got->leaves == sent.leaves);
  CHECK(got->waits.at(0).operation == "all-reduce: 1 of 2");
  CHECK(got->groups.at(0).calls == sent.groups[0].calls);
  CHECK(got->groups.at(1).calls.empty());
  CHECK(got->groups.at(1).started == 12);
  CHECK(got->groups.at(1).blocked_by == -1);
  CHECK(detail::parse_rank_report(detail::to_text(RankReport())));
  for (size_t size = 1; size < text.size(); ++size) {
    detail::parse_rank_report(text.substr(0, size));  // does not crash
  }
  CHECK_FALSE(detail::parse_rank_report(""));
  CHECK_FALSE(detail::parse_rank_report("GET / HTTP/1.1"));
}

TEST_CASE("ranges of ranks", "[waits]") {
  using Ranks = std::vector<int>;
  const auto ranks =
      GENERATE(values<Ranks>({{}, {0}, {0, 1, 2}, {3, 5, 6, 9}}));
  CHECK(detail::parse_member_ranges(detail::member_ranges(ranks)) == ranks);
  CHECK(detail::member_ranges({0, 1, 2, 7}) == "0-2,7-7");
}

}  // namespace wait_judge_test
}  // namespace ddp
