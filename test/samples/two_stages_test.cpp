#include "samples/support/two_stages.h"

#include <torch/types.h>

#include "samples/support/median.h"
#include "samples/support/worker_thread.h"
#include "test/support/catch.h"

using namespace samples;
using Catch::Contains;

namespace {

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

}  // namespace

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

TEST_CASE("a worker thread follows the caller's settings", "[stages]") {
  WorkerThread worker;
  const auto weight = torch::ones({2}, torch::requires_grad());
  const auto twice = [weight] { return weight * 2; };
  CHECK(worker.run(twice).get().requires_grad());
  {
    const torch::NoGradGuard no_grad;
    CHECK_FALSE(worker.run(twice).get().requires_grad());
  }
  CHECK(worker.run(twice).get().requires_grad());
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
  CHECK(network.forward(torch::ones({2, 4})).size(0) == 2);
}

TEST_CASE("a worker thread computes beside the caller, in order", "[stages]") {
  std::promise<void> gate;
  std::vector<int> order;  // of the worker; read after its futures
  WorkerThread worker;
  auto first = worker.run([&] {
    gate.get_future().wait();  // the caller goes on meanwhile
    order.push_back(1);
    return torch::full({}, 1);
  });
  auto second = worker.run([&]() -> torch::Tensor {
    order.push_back(2);
    throw std::runtime_error("second");
  });
  auto third = worker.run([&] {
    order.push_back(3);
    return torch::full({}, 3);
  });
  gate.set_value();
  CHECK(third.get().item<int>() == 3);
  CHECK(first.get().item<int>() == 1);
  CHECK_THROWS_WITH(second.get(), "second");
  CHECK(order == std::vector<int>{1, 2, 3});
}

TEST_CASE("a worker thread finishes before it goes", "[stages]") {
  std::future<torch::Tensor> last;
  {
    WorkerThread worker;
    for (int i = 0; i < 100; ++i) {
      last = worker.run([i] { return torch::full({}, i); });
    }
  }
  REQUIRE(last.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
  CHECK(last.get().item<int>() == 99);
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

TEST_CASE("the median", "[stages]") {
  CHECK(median({3}) == 3);
  CHECK(median({5, 1, 3}) == 3);
  CHECK(median({4, 1, 3, 2}) == 3);
}
