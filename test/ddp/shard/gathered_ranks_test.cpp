// Sharded models of ranks that gather the parameters, without shared memory.
// The ranks are processes of this host.
#include <algorithm>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <c10/core/Allocator.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include "ddp/fully_sharded_data_parallel.h"
#include "ddp/process_group.h"
#include "test/support/catch.h"
#include "test/support/rank_processes.h"

namespace ddp {
namespace gathered_ranks_test {

using Catch::Contains;
using test::RankEnd;
using test::run_rank_processes;
using torch::Tensor;

ProcessGroupOptions apart() {
  return ProcessGroupOptions().backend("gloo").shared_memory(false).timeout(
      std::chrono::minutes(10));
}

/// Time within which all ranks get an error.
constexpr std::chrono::seconds kPatience(15);

/// Layers of equal size. A forward uses the layers from `begin` to `end`.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 6; ++i) {
      layers->push_back(torch::nn::Linear(100, 100));
    }
    register_module("layers", layers);
  }
  Tensor forward(Tensor x, int begin = 0, int end = 6) {
    for (int i = begin; i < end; ++i) {
      x = torch::tanh(
          layers[static_cast<size_t>(i)]->as<torch::nn::Linear>()->forward(x));
    }
    return x;
  }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Net);

/// A unit for each layer.
FullyShardedDataParallelOptions a_unit_for_each() {
  return FullyShardedDataParallelOptions().unit_cap_mb(0.04);
}

struct Training {
  explicit Training(
      const FullyShardedDataParallelOptions& options = a_unit_for_each())
      : model(Net(), options), optimizer(model->parameters(), 0.1) {}

  Tensor forward(int begin = 0, int end = 6) {
    return model->forward(torch::ones({2, 100}) * rank(), begin, end);
  }
  void step() {
    optimizer.zero_grad();
    forward().sum().backward();
    optimizer.step();
  }
  void evaluate() {
    const torch::NoGradGuard no_grad;
    forward();
  }

  FullyShardedDataParallel<Net> model;
  torch::optim::SGD optimizer;
};

void expect_errors(const std::vector<RankEnd>& ends, const std::string& words) {
  for (const auto& end : ends) {
    CHECK_THAT(end.error, Contains(words));
  }
}

TEST_CASE("ranks that use other gathered parameters get an error") {
  const std::string how = GENERATE("another unit",
                                   "another unit in the first pass",
                                   "a forward more",
                                   "an evaluation more",
                                   "an early end",
                                   "a unit in another order",
                                   "a read after the forward");
  CAPTURE(how);
  const auto begin = std::chrono::steady_clock::now();
  const auto ends = run_rank_processes(3, [&](int rank) {
    init_process_group(apart());
    Training training;
    const bool deviates = rank == 1;
    if (how != "another unit in the first pass") {
      training.step();
      training.step();
    }
    if (how == "another unit" || how == "another unit in the first pass") {
      training.forward(deviates ? 2 : 1, deviates ? 5 : 4);
    } else if (how == "a forward more" && deviates) {
      training.forward();
    } else if (how == "an evaluation more" && deviates) {
      training.evaluate();
    } else if (how == "an early end") {
      training.forward(0, deviates ? 4 : 6);
    } else if (how == "a unit in another order" && deviates) {
      training.forward(3, 5);
    } else if (how == "a read after the forward") {
      training.forward();
      if (deviates) {
        training.model->module()->parameters()[6].sum();
      }
    }
    training.step();
    training.step();
    throw std::runtime_error("nobody has noticed");
  });
  // The additional forward meets the forward of the other ranks, which then sum
  // gradients.
  expect_errors(ends,
                how == "a forward more"
                    ? "rank 1 in comparison of the parameters that the "
                      "ranks use, here layers.0.weight to layers.0.bias "
                      "in a forward: these calls never meet"
                    : "Expected all ranks to use the same parameters");
  CHECK(std::chrono::steady_clock::now() - begin < kPatience);
}

TEST_CASE("ranks with other backward passes of gathered units get an error") {
  const std::string how = GENERATE(
      "none", "a shorter one", "a local one", "an end of the training");
  CAPTURE(how);
  const auto begin = std::chrono::steady_clock::now();
  const auto ends = run_rank_processes(3, [&](int rank) {
    init_process_group(apart());
    Training training;
    training.step();
    if (rank == 1) {
      if (how == "an end of the training") {
        destroy_process_group();
        return;
      }
      std::optional<NoSyncGuard> local;
      if (how == "a local one") {
        local.emplace(*training.model);
      }
      const auto middle = training.forward(0, 3);
      auto loss = training.model->call([&](NetImpl& net) {
        return net
            .forward(how == "a shorter one" ? middle.detach() : middle, 3, 6)
            .sum();
      });
      if (how != "none") {
        loss.backward();
      }
    }
    training.step();
    training.step();
    throw std::runtime_error("nobody has noticed");
  });
  expect_errors(ends,
                how == "a shorter one" ? "got none on rank 1: layers.0.weight"
                : how == "an end of the training"
                    ? "rank 1 in destroy_process_group: these calls never meet"
                    : "rank 1 in comparison of the parameters");
  CHECK(std::chrono::steady_clock::now() - begin < kPatience);
}

TEST_CASE("ranks that use another gathered model get an error") {
  for (const auto& end : run_rank_processes(2, [](int rank) {
         init_process_group(apart());
         Training one, other;
         (rank == 0 ? one : other).evaluate();
         throw std::runtime_error("nobody has noticed");
       })) {
    CHECK_THAT(end.error,
               Contains("uses those of another model in a forward without"));
  }
}

TEST_CASE("ranks that end a gathered forward alike go on") {
  for (const auto& end : run_rank_processes(2, [](int) {
         init_process_group(apart());
         Training training;
         for (int i = 0; i < 3; ++i) {
           training.step();
           training.forward(0, 3);
           training.evaluate();
           training.forward(2, 6);
           training.step();
         }
       })) {
    CHECK(end.error == "");
  }
}

/// Counts memory of a unit's size.
class UnitCounter : public c10::Allocator {
 public:
  static constexpr size_t kBytes = 3 * 4096 * 4;

  UnitCounter() : inner_(c10::GetAllocator(c10::kCPU)) {
    c10::SetAllocator(c10::kCPU, this);
  }
  ~UnitCounter() override { c10::SetAllocator(c10::kCPU, inner_); }

  at::DataPtr allocate(size_t bytes) override {
    units += bytes == kBytes ? 1 : 0;
    return inner_->allocate(bytes);
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

  int units = 0;

 private:
  c10::Allocator* const inner_;
};

TEST_CASE("three gathered units are in memory") {
  const bool reshards = GENERATE(true, false);
  for (const auto& end : run_rank_processes(3, [&](int) {
         init_process_group(apart());
         Training training(a_unit_for_each().reshard_after_forward(reshards));
         UnitCounter counter;
         training.step();
         training.evaluate();
         training.step();
         // Memory is used again: of three units, and of the gradients of two
         // buckets that are sent and received. Gloo may hold one for a moment
         // more.
         const int units = counter.units - 4;
         const int expected = reshards ? 3 : 6;
         TORCH_CHECK(units >= expected && units < expected + 3, units);
       })) {
    CHECK(end.error == "");
  }
}

}  // namespace gathered_ranks_test
}  // namespace ddp
