// One rank of the parity test of exchanges. exchanges.py does the same with
// PyTorch's communication hooks.
//
// usage: parity exchanges FOLDER [CASE...]
#include <numeric>
#include <optional>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>

#include "test/parity/parity.h"
#include "test/parity/passes_support.h"

namespace parity {
namespace exchanges_side {

using passes_side::inputs;
using passes_side::Log;
using passes_side::Norm;
using passes_side::numbers;
using passes_side::targets;
using torch::nn::Linear;
using Options = ddp::DistributedDataParallelOptions;

constexpr int64_t kSteps = 8;
constexpr int64_t kStart = 2;

torch::nn::Sequential wide() {
  torch::nn::Sequential net(Linear(12, 16),
                            torch::nn::Tanh(),
                            Linear(16, 8),
                            torch::nn::Tanh(),
                            Linear(8, 16));
  net->to(torch::kDouble);
  passes_side::fill(*net);
  return net;
}

ddp::PowerSGDOptions of_rank(int64_t rank) {
  return ddp::PowerSGDOptions().rank(rank).min_compression_rate(1).start_after(
      kStart);
}

void power(Log& log, const ddp::PowerSGDOptions& options) {
  const auto exchange =
      std::make_shared<ddp::PowerSGD>(ddp::process_group(), options);
  const auto net = wide();
  ddp::DistributedDataParallel model(net, Options().exchange(exchange));
  torch::optim::SGD optimizer(model->parameters(), 0.0625);
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const int64_t number = 10 * step + 3 * ddp::rank();
    torch::mse_loss(model->forward(numbers({4, 12}, number)),
                    numbers({4, 16}, number + 1))
        .backward();
    log.note("gradient", net->parameters()[0].grad());
    optimizer.step();
    const auto statistics = exchange->statistics();
    log.note("statistics",
             torch::tensor({statistics.numel_before, statistics.numel_after}));
    log.state(net);
  }
}

void post_local(Log& log, std::vector<ddp::ModelAverager> averagers) {
  passes_side::Trained trained(passes_side::Net{Norm::none});
  for (int64_t step = 0; step < kSteps; ++step) {
    std::optional<ddp::NoSyncGuard> alone;
    if (step >= kStart) {
      alone.emplace(*trained.model);
    }
    trained.train(inputs(step), targets(step));
    log.note("gradient", trained.net->first->weight.grad());
    for (auto& averager : averagers) {
      averager.average_parameters(trained.model->parameters());
    }
    log.state(trained.net);
  }
}

void periodic(Log& log, int64_t period) {
  post_local(log,
             {ddp::ModelAverager(
                 ddp::ModelAveragerOptions(period).warmup_steps(kStart))});
}

/// Averages over each half of the ranks in every step, and over all ranks in
/// every third step.
void hierarchical(Log& log) {
  std::vector<int> ranks(static_cast<size_t>(ddp::world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto middle = ranks.begin() + ddp::world_size() / 2;
  const auto lower = ddp::new_group({ranks.begin(), middle});
  const auto upper = ddp::new_group({middle, ranks.end()});
  post_local(
      log,
      {ddp::ModelAverager(ddp::ModelAveragerOptions(1, lower ? lower : upper)
                              .warmup_steps(kStart)),
       ddp::ModelAverager(ddp::ModelAveragerOptions(3).warmup_steps(3))});
}

const std::vector<passes_side::Case> kCases{
    {"rank_1", [](Log& log) { power(log, of_rank(1)); }},
    {"rank_2", [](Log& log) { power(log, of_rank(2)); }},
    {"rank_4", [](Log& log) { power(log, of_rank(4)); }},
    {"no_feedback",
     [](Log& log) { power(log, of_rank(2).error_feedback(false)); }},
    {"no_warm_start",
     [](Log& log) { power(log, of_rank(2).warm_start(false)); }},
    {"epsilon",
     [](Log& log) {
       power(log, of_rank(2).orthogonalization_epsilon(1e-3).seed(11));
     }},
    {"post_local", [](Log& log) { periodic(log, 3); }},
    {"post_local_groups", [](Log& log) { periodic(log, 2); }},
    {"hierarchical", hierarchical},
};

}  // namespace exchanges_side

int exchanges(const Arguments& args) {
  return passes_side::run_cases(args, exchanges_side::kCases);
}

}  // namespace parity
