#include "samples/experiments/two_stages.h"

#include <ATen/record_function.h>
#include <torch/types.h>

#include <condition_variable>
#include <mutex>

#include "test/support/catch.h"

using namespace samples;
using Catch::Contains;

namespace two_stages_test {

const StageDevices kCpus{torch::kCPU, torch::kCPU};

ddp::WorkerEnv local_env(int rank, int world) {
  ddp::WorkerEnv env;
  env.rank = env.local_rank = rank;
  env.world_size = env.local_world_size = world;
  return env;
}

std::string names(const StageDevices& devices) {
  return devices.first.str() + "," + devices.second.str();
}

TEST_CASE("micro-batches change nothing but the order of work", "[stages]") {
  const int64_t micro_batches = GENERATE(1, 2, 3, 4, 7, 100);
  torch::manual_seed(0);
  TwoStages network({12, 16, 2, 5}, kCpus);
  auto whole = network.undivided(torch::kCPU);
  const auto images = torch::rand({10, 3, 2, 2});
  network.micro_batches(micro_batches);

  const auto scores = network.forward(images);
  const auto expected = whole->forward(images.flatten(1));
  CHECK(scores.sizes() == torch::IntArrayRef({10, 5}));
  CHECK(torch::allclose(scores, expected, 1e-6, 1e-7));

  scores.square().mean().backward();
  expected.square().mean().backward();
  const auto mine = network.parameters(), theirs = whole->parameters();
  REQUIRE(mine.size() == 12);  // of 3 and 3 linear layers
  REQUIRE(theirs.size() == mine.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    CHECK_FALSE(mine[i].is_same(theirs[i]));
    CHECK(mine[i].grad().abs().max().item<double>() > 0);
    CHECK(torch::allclose(mine[i].grad(), theirs[i].grad(), 1e-5, 1e-7));
  }
}

TEST_CASE("the second stage follows the caller's settings", "[stages]") {
  TwoStages network({4, 8, 1, 2}, kCpus);
  const auto images = torch::ones({2, 4});
  {
    const torch::NoGradGuard no_grad;
    CHECK_FALSE(network.forward(images).requires_grad());
  }
  CHECK(network.forward(images).requires_grad());
}

TEST_CASE("a stage's error reaches the caller, and the next batch works",
          "[stages]") {
  TwoStages network({4, 8, 1, 2}, kCpus);
  network.micro_batches(2);
  auto weight = network.second()->parameters()[0];
  const auto right = weight.detach().clone();
  weight.set_data(torch::ones({8, 9}));
  CHECK_THROWS_WITH(network.forward(torch::ones({2, 4})), Contains("mat1"));
  weight.set_data(right);
  // The error of the first stage, which has four inputs.
  CHECK_THROWS_WITH(network.forward(torch::ones({2, 5})), Contains("mat1"));
  CHECK(network.forward(torch::ones({2, 4})).size(0) == 2);
}

// Observes the beginning of user scopes on all threads.
class Scopes {
 public:
  Scopes() {
    at::RecordFunctionCallback callback(&Scopes::begin);
    callback.scopes({at::RecordScope::USER_SCOPE});
    seen_ = this;
    handle_ = at::addGlobalCallback(callback);
  }
  ~Scopes() { at::removeCallback(handle_); }

  bool overlapped() const { return overlapped_; }

 private:
  // The second stage's first scope waits for the first stage's second scope.
  static std::unique_ptr<at::ObserverContext> begin(
      const at::RecordFunction& function) {
    auto& scopes = *seen_;
    std::unique_lock lock(scopes.mutex_);
    scopes.first_ += function.name() == std::string(kFirstStage);
    scopes.changed_.notify_all();
    if (function.name() == std::string(kSecondStage) && !scopes.has_waited_) {
      scopes.has_waited_ = true;
      scopes.overlapped_ = scopes.changed_.wait_for(
          lock, std::chrono::seconds(60), [&] { return scopes.first_ >= 2; });
    }
    return nullptr;
  }

  static inline Scopes* seen_ = nullptr;
  at::CallbackHandle handle_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  int first_ = 0;
  bool has_waited_ = false;
  bool overlapped_ = false;
};

TEST_CASE("the stages work at once, at two micro-batches", "[stages]") {
  TwoStages network({4, 8, 1, 2}, kCpus);
  network.micro_batches(2);
  const Scopes scopes;
  network.forward(torch::ones({2, 4}));
  CHECK(scopes.overlapped());
}

TEST_CASE("each rank gets two devices", "[stages]") {
  CHECK(names(choose_stages({}, local_env(0, 2), 0)) == "cpu,cpu");
  CHECK(names(choose_stages({}, local_env(1, 2), 4)) == "cuda:2,cuda:3");
  CHECK(names(choose_stages({}, local_env(1, 2), 3)) == "cuda:1,cuda:1");
  CHECK(names(choose_stages({}, local_env(0, 1), 1)) == "cuda:0,cuda:0");
  const std::vector<std::string> four{"cuda:1", "cuda:0", "cpu", "cpu"};
  CHECK(names(choose_stages(four, local_env(0, 2), 2)) == "cuda:1,cuda:0");
  CHECK(names(choose_stages(four, local_env(1, 2), 2)) == "cpu,cpu");

  CHECK_THROWS_WITH(choose_stages(four, local_env(0, 1), 2),
                    Contains("two devices") && Contains("cuda:1,cuda:0,cpu"));
  CHECK_THROWS_WITH(choose_stages(four, local_env(0, 2), 1),
                    Contains("but got cuda:1"));
  CHECK_THROWS_WITH(choose_stages({"cuda", "cpu"}, local_env(0, 1), 1),
                    Contains("but got cuda"));
  CHECK_THROWS_WITH(choose_stages({"cpu", "cuda:256"}, local_env(0, 1), 1),
                    Contains("but got cuda:256"));
  CHECK_THROWS(choose_stages({"gpu", "cpu"}, local_env(0, 1), 1));
}

TEST_CASE("what a pipeline can save", "[stages]") {
  CHECK(ideal_pipeline_time(2, 1) == Approx(1));
  CHECK(ideal_pipeline_time(2, 2) == Approx(0.75));
  CHECK(ideal_pipeline_time(2, 8) == Approx(9.0 / 16));
  CHECK(ideal_pipeline_time(4, 1) == Approx(1));
  CHECK(ideal_pipeline_time(4, 1'000'000) == Approx(0.25).epsilon(1e-4));
}

}  // namespace two_stages_test
