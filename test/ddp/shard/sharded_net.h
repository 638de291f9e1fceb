#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include <torch/nn.h>
#include <torch/optim.h>

#include "ddp/collectives.h"
#include "ddp/nn/checkpoint_activations.h"
#include "ddp/optim/fused.h"
#include "test/support/local_ranks.h"

namespace ddp::test {

/// A net with parameters of several kinds: tied, frozen, channels_last, of an
/// odd number of elements, of two dtypes, of a layer that a forward may leave
/// out; and buffers. With 2 to 4 ranks some parameters lie in two slabs, which
/// have multiples of 4,096 elements.
struct ShardedNetImpl : torch::nn::Module {
  explicit ShardedNetImpl(int64_t channels = 6, int64_t width = 150) {
    conv = register_module(
        "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, channels, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(channels));
    lstm = register_module(
        "lstm",
        torch::nn::LSTM(
            torch::nn::LSTMOptions(channels, 11).batch_first(true)));
    fc1 = register_module("fc1", torch::nn::Linear(11, width));
    fc2 = register_module("fc2", torch::nn::Linear(width, width));
    wide = register_module("wide", torch::nn::Linear(width, 7));
    spare = register_module("spare", torch::nn::Linear(7, 7));
    tied = register_parameter("tied", fc2->weight);
    scale = register_parameter("scale", torch::ones({}));
    wide->to(torch::kDouble);
    spare->to(torch::kDouble);
    fc1->bias.requires_grad_(false);
    torch::NoGradGuard no_grad;
    conv->weight.set_data(
        conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
  }

  /// @param x  [n, 3, 6, 6]
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = norm(conv(x)).flatten(2).transpose(1, 2);
    h = std::get<0>(lstm(h)).mean(1);
    const auto middle = [this](const torch::Tensor& from) {
      return torch::relu(torch::linear(torch::relu(fc2(fc1(from))), tied));
    };
    h = (checkpoints ? checkpoint_activations(middle, h) : middle(h)) * scale;
    auto y = wide(h.to(torch::kDouble));
    return uses_spare ? y + spare(y) : y;
  }

  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr}, wide{nullptr}, spare{nullptr};
  torch::Tensor tied, scale;
  bool checkpoints = false;
  bool uses_spare = true;
};
TORCH_MODULE(ShardedNet);

/// How ranks have the parameters of a sharded model.
enum class Form { host, gathered };

/// Calls `make`, which wraps a model, on all ranks, which are threads.
template <class Make>
auto in_form(Form form, const Group& group, const Make& make) {
  barrier(group);
  if (form == Form::gathered && group->getRank() == 0) {
    ::setenv("DDP_SHARED_MEMORY", "0", 1);
  }
  barrier(group);
  auto made = make();
  barrier(group);
  if (group->getRank() == 0) {
    ::unsetenv("DDP_SHARED_MEMORY");
  }
  barrier(group);
  return made;
}

/// Copies parameters and buffers.
inline void copy_state(const ShardedNet& from, const ShardedNet& to) {
  torch::NoGradGuard no_grad;
  for (const auto& item : from->named_parameters()) {
    to->named_parameters()[item.key()].copy_(item.value());
  }
  for (const auto& item : from->named_buffers()) {
    to->named_buffers()[item.key()].copy_(item.value());
  }
}

/// Inputs that depend on these numbers alone, because the ranks are threads
/// that share the default generator.
inline torch::Tensor input_of(int step, int rank) {
  const auto numbers = torch::arange(4 * 3 * 6 * 6, torch::kFloat);
  return torch::sin(numbers * (0.1 + step) + rank).reshape({4, 3, 6, 6});
}

/// The elementwise optimizers.
enum class Elementwise {
  adamw,
  sgd,
  amsgrad,
  rmsprop,
  adagrad,
  fused,
  fused_sgd
};

inline std::unique_ptr<torch::optim::Optimizer> make_elementwise(
    Elementwise kind, const std::vector<torch::Tensor>& parameters) {
  using namespace torch::optim;
  switch (kind) {
    case Elementwise::adamw:
      return std::make_unique<AdamW>(parameters, AdamWOptions(0.01));
    case Elementwise::sgd:
      return std::make_unique<SGD>(
          parameters, SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
    case Elementwise::amsgrad:
      return std::make_unique<Adam>(parameters,
                                    AdamOptions(0.01).amsgrad(true));
    case Elementwise::rmsprop:
      return std::make_unique<RMSprop>(
          parameters, RMSpropOptions(0.01).momentum(0.5).centered(true));
    case Elementwise::adagrad:
      return std::make_unique<Adagrad>(parameters, AdagradOptions(0.05));
    case Elementwise::fused:
      return std::make_unique<FusedAdamW>(parameters, AdamWOptions(0.01));
    case Elementwise::fused_sgd:
      return std::make_unique<FusedSGD>(parameters,
                                        SGDOptions(0.05).momentum(0.9));
  }
  return nullptr;
}

}  // namespace ddp::test
