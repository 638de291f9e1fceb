#include "dp/servers/detail/update_policy.h"

#include "test/support/catch.h"

namespace dp::detail {
namespace update_policy_test {

std::vector<std::string> names(int workers) {
  std::vector<std::string> result;
  for (int worker = 0; worker < workers; ++worker) {
    result.push_back("worker " + std::to_string(worker));
  }
  return result;
}

std::optional<Step> next_step(UpdatePolicy& policy) {
  for (;;) {
    const auto term = policy.next_term();
    if (const auto step = policy.next_step(); step || !term) {
      return step;
    }
  }
}

TEST_CASE("synchronous: gradients are added up in the order of the workers",
          "[update_policy]") {
  const auto policy = synchronous_updates(names(3));
  CHECK(policy->terms() == 3);
  policy->push(1);
  CHECK(policy->is_first(0));
  CHECK_FALSE(policy->is_first(1));
  CHECK_FALSE(policy->next_term());
  policy->push(0);
  CHECK(policy->next_term() == 0);
  CHECK(policy->next_term() == 1);
  CHECK_FALSE(policy->next_term());
  CHECK_FALSE(policy->next_step());
  CHECK(policy->is_first(2));
  policy->push(2);
  CHECK(policy->next_term() == 2);
  CHECK(policy->next_step());
  CHECK(policy->is_first(0));
}

TEST_CASE("synchronous: a round is one push of each", "[update_policy]") {
  const auto policy = synchronous_updates(names(3));
  for (int round = 0; round < 3; ++round) {
    for (const int worker : {2, 0, 1}) {
      policy->ask(worker);
      CHECK(policy->may_take(worker));
      policy->take(worker);
    }
    policy->push(2);
    CHECK_FALSE(next_step(*policy));
    CHECK_FALSE(policy->may_take(2));
    CHECK(policy->may_take(0));  // the same parameters again
    policy->push(1);
    CHECK_FALSE(next_step(*policy));
    policy->push(0);
    const auto step = next_step(*policy);
    REQUIRE(step);
    CHECK(step->workers == std::vector<int>{0, 1, 2});
    CHECK(step->staleness == 0);
    CHECK_FALSE(next_step(*policy));
  }
  CHECK_FALSE(policy->is_over());
  for (const int worker : {0, 1, 2}) {
    policy->leave(worker);
  }
  CHECK(policy->is_over());
  CHECK(policy->problem().empty());
}

TEST_CASE("synchronous: unequal numbers of pushes", "[update_policy]") {
  const auto leaves_first = GENERATE(true, false);
  const auto policy = synchronous_updates(names(2));
  if (leaves_first) {
    policy->leave(1);
    CHECK(policy->problem().empty());
    policy->push(0);
  } else {
    policy->push(0);
    policy->leave(1);
  }
  CHECK_THAT(policy->problem(),
             Catch::Contains("worker 1 finished after 0 pushes and worker 0 "
                             "made 1"));
}

TEST_CASE("synchronous: a lost worker is missed at the next push",
          "[update_policy]") {
  const bool is_behind = GENERATE(true, false);
  const auto policy = synchronous_updates(names(2));
  if (is_behind) {
    policy->push(0);
    CHECK(policy->problem().empty());
    policy->lose(1, "worker 1 is gone: why");
  } else {
    policy->push(0);
    policy->push(1);
    CHECK(next_step(*policy));
    policy->lose(1, "worker 1 is gone: why");
    CHECK(policy->problem().empty());
    policy->push(0);
  }
  CHECK(policy->problem() == "worker 1 is gone: why");
  CHECK(policy->lost() == std::vector<int>{1});
}

TEST_CASE("synchronous: a worker lost after its last push is not missed",
          "[update_policy]") {
  const auto policy = synchronous_updates(names(2));
  policy->push(1);
  policy->lose(1, "worker 1 is gone");
  policy->push(0);
  CHECK(next_step(*policy));
  policy->leave(0);
  CHECK(policy->is_over());
  CHECK(policy->problem().empty());
}

TEST_CASE("synchronous: all workers lost", "[update_policy]") {
  const auto policy = synchronous_updates(names(2));
  policy->lose(1, "first");
  policy->lose(0, "second");
  CHECK(policy->problem() == "no worker is left; the last: second");
}

TEST_CASE("a worker that is gone after it has left has done its part",
          "[update_policy]") {
  const bool is_synchronous = GENERATE(true, false);
  const auto policy = is_synchronous ? synchronous_updates(names(2))
                                     : asynchronous_updates(names(2), 4);
  for (const int worker : {0, 1}) {
    policy->ask(worker);
    REQUIRE(policy->may_take(worker));
    policy->take(worker);
  }
  policy->push(1);
  policy->leave(1);
  policy->lose(1, "worker 1 is gone");
  CHECK_FALSE(policy->is_over());
  policy->push(0);
  CHECK(next_step(*policy));
  policy->leave(0);
  policy->lose(0, "worker 0 is gone");
  CHECK(policy->is_over());
  CHECK(policy->problem().empty());
  CHECK(policy->lost() == std::vector<int>{1, 0});
}

TEST_CASE("synchronous: what is gone has still pushed too seldom",
          "[update_policy]") {
  const auto policy = synchronous_updates(names(2));
  policy->leave(1);
  policy->lose(1, "worker 1 is gone");
  policy->push(0);
  CHECK_THAT(policy->problem(),
             Catch::Contains("worker 1 finished after 0 pushes"));
}

TEST_CASE("asynchronous: lost workers are done without", "[update_policy]") {
  const auto policy = asynchronous_updates(names(3), 4);
  policy->lose(1, "worker 1 is gone");
  CHECK(policy->problem().empty());
  policy->ask(0);
  REQUIRE(policy->may_take(0));
  policy->take(0);
  policy->push(0);
  const auto step = next_step(*policy);
  REQUIRE(step);
  CHECK(step->workers == std::vector<int>{0});
  policy->leave(0);
  CHECK_FALSE(policy->is_over());
  policy->lose(2, "worker 2 is gone");
  CHECK(policy->is_over());
  CHECK(policy->problem().empty());
  CHECK(policy->lost() == std::vector<int>{1, 2});
}

TEST_CASE("asynchronous: all workers lost", "[update_policy]") {
  const auto policy = asynchronous_updates(names(2), 4);
  policy->lose(1, "first");
  policy->lose(0, "second");
  CHECK(policy->problem() == "no worker is left; the last: second");
}

}  // namespace update_policy_test
}  // namespace dp::detail
