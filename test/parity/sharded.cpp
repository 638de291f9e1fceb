// One rank of the parity test of FullyShardedDataParallel. sharded.py does the
// same with PyTorch's fully_shard. Each rank owns a part of each network: a
// rank's part of a unit has a multiple of 4,096 elements.
//
// usage: parity sharded FOLDER [CASE...]
#include <optional>

#include <torch/optim/adamw.h>

#include "test/parity/parity.h"
#include "test/parity/passes_support.h"

namespace parity {
namespace sharded_side {

using passes_side::Log;
using torch::Tensor;
using torch::nn::Linear;
using torch::nn::LinearOptions;

constexpr int64_t kSteps = 10;
constexpr int64_t kBatch = 4;
constexpr int64_t kWords = 50;

/// Returns integers from 0 to `limit` - 1 in closed form, without a short
/// period.
Tensor integers(at::IntArrayRef shape, int64_t seed, int64_t limit) {
  const auto indices = torch::arange(c10::multiply_integers(shape));
  return (indices * 7919 + seed * 104729)
      .remainder(10007)
      .remainder(limit)
      .view(shape);
}

/// Returns numbers from -1.3 to 1.3 that are exact in binary.
Tensor numbers(at::IntArrayRef shape, int64_t seed) {
  return (integers(shape, seed, 10007) - 5003).to(torch::kDouble).div(4096);
}

/// Returns the seed of the batch of this rank in a pass.
int64_t seed_of(int64_t pass) {
  return 100 + 2 * pass + ddp::rank();
}

/// Fills each parameter with different numbers; a shared one twice.
void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  module.to(torch::kDouble);
  int64_t seed = 0;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(numbers(parameter.sizes(), seed++) / 8);
  }
}

// The forward of each network returns the loss of this rank's batch in a pass.

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    register_module("first", first);
    register_module("second", second);
    register_module("last", last);
    fill(*this);
  }

  Tensor forward(int64_t pass) {
    auto x = numbers({kBatch, 32}, seed_of(pass)).to(last->weight.dtype());
    x = last(torch::tanh(second(torch::tanh(first(x)))));
    return torch::mse_loss(x,
                           numbers({kBatch, 8}, -seed_of(pass)).to(x.dtype()));
  }

  Linear first{32, 160}, second{160, 96}, last{96, 8};
};
TORCH_MODULE(Mlp);

/// One layer with two names.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    register_module("first", first);
    register_module("encoder", tied);
    register_module("decoder", tied);
    fill(*this);
  }

  Tensor forward(int64_t pass) {
    auto x = numbers({kBatch, 16}, seed_of(pass)).to(tied->weight.dtype());
    x = tied(torch::tanh(tied(torch::tanh(first(x)))));
    return torch::mse_loss(x,
                           numbers({kBatch, 96}, -seed_of(pass)).to(x.dtype()));
  }

  Linear first{16, 96}, tied{LinearOptions(96, 96).bias(false)};
};
TORCH_MODULE(Tied);

struct ConvolutionImpl : torch::nn::Module {
  ConvolutionImpl() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
    fill(*this);
  }

  Tensor forward(int64_t pass) {
    auto x = first(numbers({kBatch, 2, 8, 8}, seed_of(pass)));
    x = last(torch::tanh(norm(x)).flatten(1));
    return torch::mse_loss(x, numbers({kBatch, 8}, -seed_of(pass)));
  }

  torch::nn::Conv2d first{torch::nn::Conv2dOptions(2, 16, 3).padding(1)};
  torch::nn::BatchNorm2d norm{16};
  Linear last{1024, 8};
};
TORCH_MODULE(Convolution);

struct TransformerImpl : torch::nn::Module {
  TransformerImpl() {
    register_module("words", words);
    register_module("encoder", encoder);
    register_module("last", last);
    fill(*this);
  }

  Tensor forward(int64_t pass) {
    const auto x = words(integers({6, kBatch}, seed_of(pass), kWords));
    return torch::cross_entropy_loss(
        last(encoder(x)).flatten(0, 1),
        integers({6 * kBatch}, seed_of(pass) + 7, kWords));
  }

  torch::nn::Embedding words{kWords, 32};
  torch::nn::TransformerEncoderLayer encoder{
      torch::nn::TransformerEncoderLayerOptions(32, 4)
          .dim_feedforward(64)
          .dropout(0)};
  Linear last{32, kWords};
};
TORCH_MODULE(Transformer);

struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl() {
    register_module("lstm", lstm);
    register_module("last", last);
    fill(*this);
  }

  Tensor forward(int64_t pass) {
    auto x = numbers({5, kBatch, 16}, seed_of(pass)).to(last->weight.dtype());
    x = last(std::get<0>(lstm(x))[-1]);
    return torch::mse_loss(x,
                           numbers({kBatch, 8}, -seed_of(pass)).to(x.dtype()));
  }

  torch::nn::LSTM lstm{16, 32};
  Linear last{32, 8};
};
TORCH_MODULE(Recurrent);

struct Training {
  bool has_momentum = false;  ///< SGD with momentum, else AdamW
  double max_norm = 0;        ///< 0: without clip_grad_norm_
  int64_t passes = 1;         ///< of a step; all except the last are local
  ddp::FullyShardedDataParallelOptions options;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::vector<Tensor>& parameters, bool has_momentum) {
  if (has_momentum) {
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(0.0625).momentum(0.75));
  }
  return std::make_unique<torch::optim::AdamW>(
      parameters, torch::optim::AdamWOptions(0.015625).weight_decay(0.125));
}

template <typename N>
void train(Log& log, const N& net, const Training& training) {
  ddp::FullyShardedDataParallel model(net, training.options);
  int64_t elements = 0;
  for (const auto& leaf : model->parameters()) {
    elements += leaf.numel();
  }
  TORCH_CHECK(elements > 0, "Expected a part of the parameters on each rank");
  const auto optimizer =
      make_optimizer(model->parameters(), training.has_momentum);
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    for (int64_t i = 1; i <= training.passes; ++i) {
      std::optional<ddp::NoSyncGuard> local;
      if (i < training.passes) {
        local.emplace(*model);
      }
      const int64_t pass = step * training.passes + i;
      const auto loss = model->forward(pass);
      log.note("loss " + std::to_string(pass), loss);
      loss.backward();
    }
    if (training.max_norm > 0) {
      const double norm = model->clip_grad_norm_(training.max_norm);
      log.note("norm " + std::to_string(step),
               torch::tensor(norm, torch::kDouble));
    }
    optimizer->step();
  }
  if (training.options.param_dtype()) {
    for (const auto& shard : model->named_shards()) {
      log.note("leaves of " + shard.key(),
               torch::cat(ddp::all_gather(shard.value().detach().flatten())));
    }
  }
  const ddp::WholeParameters whole(*model);
  log.state(net);
}

/// Several units, each with parts of both ranks.
const auto kSmallUnits =
    ddp::FullyShardedDataParallelOptions().unit_cap_mb(0.04);

/// Trains a network in float32. Its units are gathered in bfloat16.
template <typename N>
void train_bfloat16(Log& log,
                    Training training,
                    std::optional<c10::ScalarType> reduce_dtype = {}) {
  N net;
  net->to(torch::kFloat);
  training.has_momentum = true;
  training.options.param_dtype(torch::kBFloat16).reduce_dtype(reduce_dtype);
  train(log, net, training);
}

const std::vector<passes_side::Case> kCases{
    {"mlp",
     [](Log& log) {
       train(log, Mlp(), {.has_momentum = true, .options = kSmallUnits});
     }},
    {"tied", [](Log& log) { train(log, Tied(), {}); }},
    {"convolution",
     [](Log& log) { train(log, Convolution(), {.has_momentum = true}); }},
    {"transformer",
     [](Log& log) { train(log, Transformer(), {.max_norm = 0.125}); }},
    {"recurrent",
     [](Log& log) {
       train(log, Recurrent(), {.has_momentum = true, .passes = 3});
     }},
    {"frozen",
     [](Log& log) {
       Mlp net;
       passes_side::require_grad(*net->second, false);
       train(log, net, {.options = kSmallUnits});
     }},
    {"float_mlp",
     [](Log& log) {
       Mlp net;
       net->to(torch::kFloat);
       train(log, net, {.has_momentum = true});
     }},
    {"bfloat16_mlp",
     [](Log& log) { train_bfloat16<Mlp>(log, {.options = kSmallUnits}); }},
    {"bfloat16_mlp_sums_of_float",
     [](Log& log) {
       train_bfloat16<Mlp>(log, {.options = kSmallUnits}, torch::kFloat);
     }},
    {"bfloat16_tied",
     [](Log& log) { train_bfloat16<Tied>(log, {}, torch::kFloat); }},
    {"bfloat16_transformer",
     [](Log& log) {
       train_bfloat16<Transformer>(log, {.max_norm = 0.125}, torch::kFloat);
     }},
    {"bfloat16_recurrent",
     [](Log& log) { train_bfloat16<Recurrent>(log, {.passes = 3}); }},
};

}  // namespace sharded_side

int sharded(const Arguments& args) {
  return passes_side::run_cases(args, sharded_side::kCases);
}

}  // namespace parity
