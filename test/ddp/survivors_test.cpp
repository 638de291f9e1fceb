// Changes the ranks of a wrapped module when each rank is a process, also after
// a rank has died.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/process_group.h"
#include "test/support/catch.h"
#include "test/support/rank_processes.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace survivors_test {

using Catch::Contains;
using test::RankEnd;
using torch::Tensor;
using torch::nn::Linear;
using torch::nn::Sequential;
using Group = c10::intrusive_ptr<c10d::Backend>;
using Model = DistributedDataParallel<torch::nn::SequentialImpl>;

constexpr int kRanks = 3;

/// Runs ranks for at most a minute, a limit for the slowest machine.
std::vector<RankEnd> run_ranks(const std::function<void(int rank)>& body) {
  return test::run_rank_processes(kRanks, body, std::chrono::minutes(1));
}

/// Options with time-outs so long that a test that waits for one of them fails.
ProcessGroupOptions long_timeouts() {
  return ProcessGroupOptions()
      .backend("gloo")
      .timeout(std::chrono::minutes(10))
      .connect_timeout(std::chrono::minutes(10));
}

/// Options with several buckets.
DistributedDataParallelOptions over(const Group& group) {
  return DistributedDataParallelOptions()
      .process_group(group)
      .bucket_cap_mb(1e-6)
      .first_bucket_cap_mb(1e-6);
}

Sequential make_net() {
  Sequential net(Linear(4, 8), torch::nn::Tanh(), Linear(8, 2));
  net->to(torch::kDouble);
  return net;
}

/// Returns the gradients of each step, then the parameters.
std::vector<Tensor> train(Model& model, int rank, int steps) {
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto x = torch::arange(12, torch::kDouble).reshape({3, 4}) + rank;
  std::vector<Tensor> seen;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    (model((x * (step + 1)).sin()) - rank).pow(2).sum().backward();
    for (const auto& parameter : model->parameters()) {
      seen.push_back(parameter.grad().clone());
    }
    optimizer.step();
  }
  for (const auto& parameter : model->parameters()) {
    seen.push_back(parameter.detach().clone());
  }
  return seen;
}

/// Moves the model to another group and compares its training with that of a
/// new wrapper over this group.
void expect_as_new(Model& model, const Group& group, int rank) {
  {  // makes the ranks' parameters differ
    const torch::NoGradGuard no_grad;
    model->parameters()[0].add_(rank);
  }
  Model fresh(Sequential(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(
                  model->module()->clone())),
              over(group));
  model->update_process_group(group);
  const auto seen = train(model, rank, 3);
  const auto expected = train(fresh, rank, 3);
  for (size_t i = 0; i < expected.size(); ++i) {
    TORCH_CHECK(seen[i].equal(expected[i]),
                "tensor ",
                i,
                " is ",
                seen[i],
                ", but a new wrapper's ",
                expected[i]);
  }
}

void expect_whole(const std::vector<RankEnd>& ends,
                  std::optional<int> dead = std::nullopt) {
  for (int rank = 0; rank < kRanks; ++rank) {
    INFO("rank " << rank);
    CHECK(ends[rank].error == "");
    CHECK(ends[rank].signal == (rank == dead ? SIGKILL : 0));
  }
}

/// Trains on all ranks until rank `dead` dies. Checks that the other ranks
/// report it.
void train_until_death(Model& model, int rank, int dead) {
  train(model, rank, 2);
  if (rank == dead) {
    ::raise(SIGKILL);
  }
  std::string error = "nothing";
  try {
    train(model, rank, 1);
  } catch (const c10::Error& thrown) {
    error = thrown.what();
  }
  TORCH_CHECK(
      error.find("rank " + std::to_string(dead) + " has ended") != error.npos,
      error);
}

TEST_CASE("a rank stays out for a while", "[survivors]") {
  expect_whole(run_ranks([](int rank) {
    init_process_group(long_timeouts());
    Model model(make_net(), over(process_group()));
    train(model, rank, 2);
    if (const auto pair = new_group({2, 0})) {
      expect_as_new(model, pair, rank);
    }
    expect_as_new(model, process_group(), rank);
    destroy_process_group();
  }));
}

TEST_CASE("survivors train on in a group of their job", "[survivors]") {
  constexpr int kDead = 1;  // not rank 0, the job's store host
  const auto ends = run_ranks([](int rank) {
    init_process_group(long_timeouts());
    Model model(make_net(), over(process_group()));
    train_until_death(model, rank, kDead);
    expect_as_new(model, new_group({0, 2}), rank);
    destroy_process_group();
  });
  expect_whole(ends, kDead);
}

TEST_CASE("survivors train on in another job", "[survivors]") {
  const int dead = GENERATE(0, 1);
  const test::TemporaryFolder folder;
  const auto ends = run_ranks([&](int rank) {
    init_process_group(long_timeouts());
    Model model(make_net(), over(process_group()));
    train_until_death(model, rank, dead);
    destroy_process_group();
    auto env = WorkerEnv::read();
    env.rank = env.local_rank = rank > dead ? rank - 1 : rank;
    env.world_size = env.local_world_size = kRanks - 1;
    init_process_group(long_timeouts().worker_env(env).store(
        c10::make_intrusive<c10d::FileStore>(folder / "store", kRanks - 1)));
    expect_as_new(model, process_group(), rank);
    destroy_process_group();
  });
  expect_whole(ends, dead);
}

TEST_CASE("no group where the store has died with its rank", "[survivors]") {
  const auto ends = run_ranks([](int rank) {
    init_process_group(long_timeouts());
    Model model(make_net(), over(process_group()));
    train_until_death(model, rank, 0);
    expect_as_new(model, new_group({1, 2}), rank);
  });
  for (const int rank : {1, 2}) {
    INFO("rank " << rank);
    CHECK_THAT(ends[rank].error,
               Contains("store of the job for a new group, but it has ended "
                        "with rank 0"));
  }
}

}  // namespace survivors_test
}  // namespace ddp
