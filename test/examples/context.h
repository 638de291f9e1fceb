#pragma once

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/record_function.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/mnist.h>
#include <torch/data/example.h>
#include <torch/data/samplers/distributed.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "ddp/ddp.h"
#include "dp/dp.h"

// Declarations of the names that the examples in public headers and in docs/
// use without declaring them. The examples are compiled but never linked.
namespace examples {

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  void reset() override;
  torch::Tensor forward(torch::Tensor x);
  torch::Tensor encode(torch::Tensor x);
  torch::Tensor loss(torch::Tensor code);
  torch::nn::Embedding table{nullptr};
};
TORCH_MODULE(Net);

using Batch = torch::data::Example<>;
using Images = decltype(torch::data::datasets::MNIST("").map(
    torch::data::transforms::Stack<>()));

/// Return type of a user's function; converts to any type.
struct Anything {
  template <typename T>
  operator T() const;
};
struct Action {
  template <typename... Arguments>
  Anything operator()(const Arguments&... arguments) const;
};
struct LossFunction {
  template <typename... Arguments>
  torch::Tensor operator()(const Arguments&... arguments) const;
};

extern const Action train, evaluate, read, show_progress;
extern const LossFunction loss, loss_of;
std::vector<std::string> all_gather_text_of_host(const std::string& mine);
bool goes_on();  // replaces "for (...)"
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    std::vector<torch::Tensor> parameters);

extern Net net, generator, critic;
extern std::shared_ptr<NetImpl> second;
extern ddp::DistributedDataParallel<NetImpl> model;
extern torch::optim::SGD optimizer, generator_optimizer, critic_optimizer;
extern ddp::GradScaler scaler;
extern ddp::DistributedSampler sampler;
extern ddp::Checkpoint checkpoint;
extern dp::ParameterClient client;
extern c10::intrusive_ptr<c10d::Backend> ranks_of_this_host;
extern c10::intrusive_ptr<c10d::Store> store;
extern const c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> options;
extern std::vector<ddp::NamedParameter> parameters;
extern Images dataset;
extern std::unique_ptr<std::vector<Batch>> loader;
extern Batch batch;
extern torch::Tensor data, target, images, labels, first_half, second_half,
    half, other_half, batch_loss, local_hits, my_scores;
extern const torch::Device device, gpu_1;
extern const std::string path, host_name;
extern const int64_t epoch, epochs, count, shards;
extern const int rank, size;
extern int64_t steps;
extern const bool resume, uses_half;

}  // namespace examples
