// Sharded checkpoints of ranks that are processes of this host.
#include <csignal>
#include <random>
#include <string>

#include <torch/nn.h>
#include <torch/optim.h>

#include "ddp/base/atomic_folder.h"
#include "ddp/checkpoint.h"
#include "ddp/fully_sharded_data_parallel.h"
#include "ddp/process_group.h"
#include "test/support/catch.h"
#include "test/support/kills.h"
#include "test/support/rank_processes.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace sharded_saves_test {

using test::run_rank_processes;

/// A sharded model. All its parameters equal the step.
struct Training {
  explicit Training(bool shares_memory) {
    init_process_group(ProcessGroupOptions()
                           .backend("gloo")
                           .shared_memory(shares_memory)
                           .timeout(std::chrono::minutes(10)));
    model = FullyShardedDataParallel<torch::nn::Linear>(
        torch::nn::Linear(90, 300),
        FullyShardedDataParallelOptions().unit_cap_mb(0.005));
    checkpoint = std::make_unique<Checkpoint>(model.ptr());
  }

  void set_step(int64_t step) {
    const WholeParameters whole(*model);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->module()->parameters()) {
      parameter.fill_(static_cast<double>(step));
    }
    checkpoint->step(step);
  }

  bool is_whole() {
    const WholeParameters whole(*model);
    for (const auto& parameter : model->module()->parameters()) {
      if (!parameter.eq(checkpoint->step()).all().item<bool>()) {
        return false;
      }
    }
    return true;
  }

  FullyShardedDataParallel<torch::nn::Linear> model{nullptr};
  std::unique_ptr<Checkpoint> checkpoint;
};

TEST_CASE("a rank that is killed leaves a whole folder") {
  constexpr int kRanks = 3;
  const test::TemporaryFolder folder;
  const auto path = folder / "x";
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < test::kills(); ++i) {
    const std::chrono::microseconds time(
        std::uniform_int_distribution<>(1, 30'000)(random));
    const int victim = std::uniform_int_distribution<>(0, kRanks - 1)(random);
    const bool shares_memory = i % 2 == 0;
    CAPTURE(i, time.count(), victim, shares_memory);
    const auto ends = run_rank_processes(kRanks, [&](int rank) {
      Training training(shares_memory);
      if (i > 0) {
        training.checkpoint->load(path);
      }
      auto step = training.checkpoint->step();
      training.set_step(++step);
      training.checkpoint->save_sharded(path);
      if (rank == victim) {
        test::signal_later(SIGKILL, time);
      }
      while (true) {
        training.set_step(++step);
        training.checkpoint->save_sharded(path);
      }
    });
    CHECK(ends[static_cast<size_t>(victim)].signal == SIGKILL);
    for (const auto& end : run_rank_processes(1 + i % 4, [&](int) {
           Training training(shares_memory);
           training.checkpoint->load(path);
           TORCH_CHECK(training.checkpoint->step() > i);
           TORCH_CHECK(training.is_whole());
           training.checkpoint->save_sharded(path);
         })) {
      CHECK(end.error == "");
    }
    CHECK(detail::names_in(folder.path()) == std::vector<std::string>{"x"});
  }
}

}  // namespace sharded_saves_test
}  // namespace ddp
