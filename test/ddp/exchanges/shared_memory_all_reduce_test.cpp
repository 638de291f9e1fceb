#include "ddp/exchanges/shared_memory_all_reduce.h"

#include <chrono>
#include <future>
#include <string>

#include <torch/types.h>

#include "ddp/job/monitored_backend.h"
#include "ddp/job/wait.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace shared_memory_all_reduce_test {

using test::Group;

/// One bucket of an exchange, without a reducer.
struct Bucket {
  explicit Bucket(const Group& group)
      : exchange(group), payload(exchange.allocate(1000, torch::kFloat)) {}

  void start() { exchange.start(bucket()); }
  void finish() { exchange.finish(bucket()); }
  /// Returns the error of `finish`, or "".
  std::string try_finish() {
    try {
      finish();
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  }
  GradientBucket bucket() const { return {0, 1, payload, {}}; }

  SharedMemoryAllReduce exchange;
  torch::Tensor payload;
};

void expect_in(const std::string& error, const std::string& part) {
  TORCH_CHECK(error.find(part) != std::string::npos, "got: ", error);
}

TEST_CASE("a wait over the program's own group ends at its time-out",
          "[exchange][shared]") {
  test::run_ranks(2, [](const Group& group) {
    Bucket bucket(group);
    if (group->getRank() == 0) {
      group->setTimeout(std::chrono::milliseconds(200));
      bucket.start();
      expect_in(bucket.try_finish(),
                "timed out (Timed out waiting for rank 1)");
    }
    group->setTimeout(std::chrono::minutes(2));
    group->barrier(c10d::BarrierOptions())->wait();
  });
}

TEST_CASE("a rank that abandons a pass ends the waits of the others",
          "[exchange][shared]") {
  test::run_ranks(2, [](const Group& group) {
    Bucket bucket(group);
    // Rank 1 starts no sum, because a started sum may be complete before it
    // abandons the pass.
    if (group->getRank() == 1) {
      bucket.exchange.abandon();
    } else {
      bucket.start();
      expect_in(bucket.try_finish(), "rank 1 of the group has left or stopped");
    }
  });
}

TEST_CASE("a sum counts as a collective of the job's group",
          "[exchange][shared]") {
  const auto errors = test::try_host_ranks(3, [](const Group& group) {
    const auto& job = dynamic_cast<detail::MonitoredBackend&>(*group);
    Bucket bucket(group);
    const auto before = job.started();
    for (int pass = 0; pass < 3; ++pass) {
      bucket.payload.fill_(1);
      bucket.start();
      bucket.finish();
      TORCH_CHECK(bucket.payload.eq(3).all().item<bool>());
    }
    TORCH_CHECK(job.started() == before + 3);
    // An all-reduce of the backend never meets a sum of the same size.
    const detail::GroupWaitScope waits(*group, "a sum");
    const auto call = job.progress().waits.at(0).call;
    TORCH_CHECK(call.find("shared memory") != std::string::npos, call);
  });
  CHECK(errors == std::vector<std::string>(3));
}

TEST_CASE("the end of a group ends the waits of all its ranks",
          "[exchange][shared]") {
  const bool aborts = GENERATE(true, false);
  std::promise<void> ended;
  const auto errors = test::try_host_ranks(2, [&](const Group& group) {
    Bucket bucket(group);
    if (group->getRank() == 0) {
      ended.get_future().wait();
      bucket.start();
      expect_in(bucket.try_finish(), "rank 1 of the group has left or stopped");
      return;
    }
    bucket.start();
    auto wait =
        std::async(std::launch::async, [&] { return bucket.try_finish(); });
    aborts ? group->abort() : group->shutdown();
    expect_in(wait.get(),
              aborts ? "the program has aborted the group" : "closed");
    ended.set_value();
  });
  CHECK(errors == std::vector<std::string>(2));
}

}  // namespace shared_memory_all_reduce_test
}  // namespace ddp
