// Sharded models of ranks that are processes of this host.
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/library.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include "ddp/checkpoint.h"
#include "ddp/collectives.h"
#include "ddp/fully_sharded_data_parallel.h"
#include "ddp/process_group.h"
#include "test/support/catch.h"
#include "test/support/kills.h"
#include "test/support/rank_processes.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace sharded_ranks_test {

using Catch::Contains;
using test::RankEnd;
using test::run_rank_processes;
using torch::Tensor;

/// @param shares_memory  between ranks; else the ranks gather parameters.
ProcessGroupOptions over_gloo(bool shares_memory = true) {
  return ProcessGroupOptions()
      .backend("gloo")
      .shared_memory(shares_memory)
      .timeout(std::chrono::minutes(10));
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 4; ++i) {
      layers->push_back(torch::nn::Linear(100, 100));
    }
    register_module("layers", layers);
  }
  Tensor forward(Tensor x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Net);

/// A model of four units and its training.
struct Training {
  Training()
      : model(Net(), FullyShardedDataParallelOptions().unit_cap_mb(0.04)),
        optimizer(model->parameters(), torch::optim::AdamWOptions(0.01)) {}

  Tensor loss_of(int step) {
    const auto x = torch::arange(200, torch::kFloat).reshape({2, 100});
    return model->forward(torch::sin(x * (step + 1) + rank())).square().mean();
  }
  void step(int number) {
    optimizer.zero_grad();
    loss_of(number).backward();
    optimizer.step();
  }
  Tensor evaluate() {
    const torch::NoGradGuard no_grad;
    return loss_of(0);
  }

  FullyShardedDataParallel<Net> model;
  torch::optim::AdamW optimizer;
};

void expect_whole(const std::vector<RankEnd>& ends) {
  for (const auto& end : ends) {
    CHECK(end.error == "");
    CHECK(end.exit_code == 0);
    CHECK(end.signal == 0);
  }
}

/// Expects that the error of each rank but `left` has these words.
void expect_errors(const std::vector<RankEnd>& ends,
                   int left,
                   const std::string& words) {
  for (int rank = 0; rank < static_cast<int>(ends.size()); ++rank) {
    if (rank != left) {
      CAPTURE(rank);
      CHECK_THAT(ends[static_cast<size_t>(rank)].error, Contains(words));
    }
  }
}

TEST_CASE("a rank of a sharded model is killed") {
  constexpr int kRanks = 3;
  const test::TemporaryFolder folder;
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < test::kills(); ++i) {
    const std::chrono::microseconds time(
        std::uniform_int_distribution<>(1, 100'000)(random));
    const int victim = std::uniform_int_distribution<>(0, kRanks - 1)(random);
    const bool begins_early = std::bernoulli_distribution()(random);
    const bool shares_memory = i % 2 == 0;
    CAPTURE(time.count(), victim, begins_early, shares_memory);
    const auto ends = run_rank_processes(kRanks, [&](int rank) {
      init_process_group(over_gloo(shares_memory));
      if (rank == victim && begins_early) {
        test::signal_later(SIGKILL, time);
      }
      Training training;
      Checkpoint checkpoint(training.model.ptr());
      checkpoint.add("optimizer", training.optimizer);
      training.step(0);
      if (rank == victim && !begins_early) {
        test::signal_later(SIGKILL, time);
      }
      for (int number = 1;; ++number) {
        training.step(number);
        training.evaluate();
        if (number % 8 == 0) {
          checkpoint.save(folder / "file.pt");
        }
      }
    });
    CHECK(ends[static_cast<size_t>(victim)].signal == SIGKILL);
    expect_errors(
        ends,
        victim,
        "the process of rank " + std::to_string(victim) + " has ended");
  }
}

TEST_CASE("an exception on one rank of a sharded model reaches all") {
  const std::string where =
      GENERATE("forward", "backward", "before the step", "whole parameters");
  const bool shares_memory = GENERATE(true, false);
  CAPTURE(where, shares_memory);
  const auto ends = run_rank_processes(3, [&](int rank) {
    init_process_group(over_gloo(shares_memory));
    try {
      Training training;
      training.step(0);
      const auto fail_in = [&](const std::string& place) {
        if (rank == 1 && where == place) {
          throw std::runtime_error("no milk");
        }
      };
      training.model->call([&](NetImpl&) { fail_in("forward"); });
      auto loss = training.loss_of(1);
      loss.register_hook([&](const Tensor&) { fail_in("backward"); });
      training.optimizer.zero_grad();
      loss.backward();
      fail_in("before the step");
      training.optimizer.step();
      if (where == "whole parameters") {
        const WholeParameters whole(*training.model);
        fail_in("whole parameters");
      }
      for (int number = 2; number < 10; ++number) {
        training.step(number);
      }
    } catch (...) {
      destroy_process_group();  // tells the others why
      throw;
    }
  });
  CHECK(ends[1].error == "no milk");
  expect_errors(ends,
                1,
                where == "whole parameters"
                    ? "has left the scope of a WholeParameters"
                    : "no milk");
}

TEST_CASE("a forward in the scope of whole parameters is an error") {
  const bool shares_memory = GENERATE(true, false);
  const bool is_nested = GENERATE(true, false);
  CAPTURE(shares_memory, is_nested);
  for (const auto& end : run_rank_processes(2, [&](int) {
         init_process_group(over_gloo(shares_memory));
         Training training;
         const WholeParameters whole(*training.model);
         if (is_nested) {
           const WholeParameters other(*training.model);
         }
         training.step(0);
       })) {
    CHECK_THAT(end.error, Contains("in the scope of a WholeParameters"));
  }
}

TEST_CASE("a rank evaluates while the others leave the job") {
  expect_whole(run_rank_processes(3, [](int rank) {
    init_process_group(over_gloo());
    Training training;
    for (int number = 0; number < 4; ++number) {
      training.step(number);
    }
    if (rank == 1) {
      for (int i = 0; i < 3; ++i) {
        training.evaluate();
      }
    }
    destroy_process_group();
  }));
}

/// Takes a dispatch key as another library would.
torch::Library take_key(c10::DispatchKey key) {
  torch::Library library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  library.fallback(torch::CppFunction::makeFallthrough());
  return library;
}

TEST_CASE("a sharded model needs one of two dispatch keys") {
  const bool are_both_taken = GENERATE(false, true);
  const auto ends = run_rank_processes(2, [&](int) {
    const auto one = take_key(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
    std::optional<torch::Library> other;
    if (are_both_taken) {
      other.emplace(take_key(c10::DispatchKey::DeferredInit));
    }
    init_process_group(over_gloo());
    Training training;
    training.step(0);
    try {
      training.model->module()->parameters()[0].sum();
    } catch (const c10::Error&) {
      destroy_process_group();
      return;
    }
    throw std::runtime_error("a parameter was read after a step");
  });
  if (!are_both_taken) {
    return expect_whole(ends);
  }
  for (const auto& end : ends) {
    CHECK_THAT(end.error,
               Contains("have taken both: TESTING_ONLY_GenericWrapper") &&
                   Contains("DeferredInit"));
  }
}

/// A module of 64 MB with a buffer of 2 MB.
struct LargeImpl : torch::nn::Module {
  LargeImpl() {
    for (int i = 0; i < 16; ++i) {
      layers->push_back(torch::nn::Linear(1024, 1024));
    }
    register_module("layers", layers);
    mask = register_buffer("mask", torch::arange(250'000));
  }
  Tensor forward(const Tensor& x) {
    return layers->forward(x) + mask.narrow(0, 100, 1024);
  }
  torch::nn::Sequential layers;
  Tensor mask;
};
TORCH_MODULE(Large);

/// Memory of this process alone, in MB.
double private_megabytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    if (word == "RssAnon:") {
      double kilobytes = 0;
      file >> kilobytes;
      return kilobytes / 1000;
    }
  }
  return NAN;
}

TEST_CASE("only rank 0 has memory for the module that a function constructs") {
  expect_whole(run_rank_processes(3, [](int rank) {
    init_process_group(over_gloo());
    torch::manual_seed(rank);
    const double before = private_megabytes();
    double constructed = NAN;
    FullyShardedDataParallel<Large> model([&] {
      Large net;
      constructed = private_megabytes() - before;
      return net;
    });
    // AddressSanitizer takes half as much again, and keeps freed memory.
    TORCH_CHECK(rank == 0 ? constructed > 60 : constructed < 45, constructed);
    const double kept = private_megabytes() - before;
    TORCH_CHECK(rank == 0 || kept < 45, kept);
    torch::manual_seed(0);
    const Large expected;
    const WholeParameters whole(*model);
    for (const auto& item : model->module()->named_parameters()) {
      TORCH_CHECK(
          torch::equal(item.value(), expected->named_parameters()[item.key()]),
          item.key());
    }
    TORCH_CHECK(torch::equal(model->module()->mask, expected->mask));
  }));
}

TEST_CASE("a large tensor that is no buffer is an error") {
  const auto ends = run_rank_processes(2, [](int) {
    init_process_group(over_gloo());
    Tensor other;
    FullyShardedDataParallel<Net> model([&] {
      other = torch::ones({1 << 20});
      return Net();
    });
  });
  for (const auto& end : ends) {
    CHECK_THAT(end.error, Contains("but got one of 4194304 bytes"));
  }
}

}  // namespace sharded_ranks_test
}  // namespace ddp
