#include "test/bench/feature_arms.h"

#include <utility>

#include <torch/nn/modules/batchnorm.h>

#include "ddp/amp/autocast.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/nn/checkpoint_activations.h"
#include "ddp/nn/sync_batch_norm.h"
#include "ddp/optim/model_averager.h"
#include "ddp/optim/zero_redundancy_optimizer.h"
#include "test/bench/training_arm.h"

namespace ddp::bench {
namespace {

/// A chain that checkpoints every layer.
struct CheckpointedChainImpl : ChainImpl {
  using ChainImpl::ChainImpl;

  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) {
      x = checkpoint_activations(layer, x);
    }
    return x;
  }
};
TORCH_MODULE(CheckpointedChain);

/// A chain with a norm after each layer.
template <typename Norm>
struct NormedChainImpl : ChainImpl {
  explicit NormedChainImpl(const Workload& workload) : ChainImpl(workload) {
    for (int64_t i = 0; i < workload.layers; ++i) {
      norms.push_back(
          register_module("norm" + std::to_string(i), Norm(workload.width)));
    }
  }

  torch::Tensor forward(torch::Tensor x) {
    for (size_t i = 0; i < layers.size(); ++i) {
      x = norms[i](layers[i](x));
    }
    return x;
  }

  std::vector<Norm> norms;
};
template <typename Norm>
using NormedChain = torch::nn::ModuleHolder<NormedChainImpl<Norm>>;

template <typename Net>
Net on_device(const Workload& workload) {
  Net net(workload);
  net->to(workload.device);
  return net;
}

/// Creates an arm of a wrapped `Net`.
template <typename Net = Chain>
std::unique_ptr<Arm> wrapped_arm(const Workload& workload,
                                 const Group& group,
                                 DistributedDataParallelOptions options,
                                 const MakeOptimizer& make_optimizer = sgd()) {
  return model_arm(workload,
                   DistributedDataParallel(on_device<Net>(workload),
                                           options.process_group(group)),
                   make_optimizer);
}

template <typename Net = Chain>
Maker wrapped(const DistributedDataParallelOptions& options = {}) {
  return [options](const Workload& workload, const Group& group) {
    return wrapped_arm<Net>(workload, group, options);
  };
}

std::unique_ptr<Arm> autocast_arm(const Workload& workload,
                                  const Group& group) {
  const auto net = on_device<Chain>(workload);
  DistributedDataParallel model(
      net, DistributedDataParallelOptions().process_group(group));
  return training_arm(workload, *net, [model](const torch::Tensor& x) mutable {
    const AutocastGuard guard(x.device().type(),
                              AutocastOptions().dtype(torch::kBFloat16));
    return model->forward(x).to(torch::kFloat);
  });
}

/// An arm that averages gradients in each fourth step only, which also updates
/// the parameters.
class AccumulatingArm : public Arm {
 public:
  AccumulatingArm(const Workload& workload, const Group& group)
      : net_(on_device<Chain>(workload)),
        data_(input(workload)),
        target_(target(workload)),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(kRate)),
        model_(net_, DistributedDataParallelOptions().process_group(group)) {}

  void step() override {
    if (++steps_ % 4 != 0) {
      const NoSyncGuard no_sync(*model_);
      return pass();
    }
    pass();
    optimizer_.step();
    optimizer_.zero_grad();
  }

 private:
  void pass() { torch::mse_loss(model_->forward(data_), target_).backward(); }

  Chain net_;
  torch::Tensor data_, target_;
  torch::optim::SGD optimizer_;
  DistributedDataParallel<Chain> model_;
  int64_t steps_ = 0;
};

/// An arm that averages parameters after each eighth step, and no gradients.
class AveragingArm : public Arm {
 public:
  AveragingArm(const Workload& workload, const Group& group)
      : net_(on_device<Chain>(workload)),
        arm_(model_arm(workload, net_)),
        averager_(ModelAveragerOptions(8, group)) {}

  void step() override {
    arm_->step();
    averager_.average_parameters(net_->parameters());
  }

 private:
  Chain net_;
  std::unique_ptr<Arm> arm_;
  ModelAverager averager_;
};

MakeOptimizer sharded_sgd(const Group& group) {
  return [group](std::vector<torch::Tensor> parameters) {
    return std::make_unique<ZeroRedundancyOptimizer>(
        std::move(parameters),
        [](auto groups) {
          return std::make_unique<torch::optim::SGD>(
              groups, torch::optim::SGDOptions(kRate));
        },
        group);
  };
}

}  // namespace

std::map<std::string, Maker> feature_makers() {
  using Options = DistributedDataParallelOptions;
  using BatchNormed = NormedChain<torch::nn::BatchNorm1d>;
  return {
      {"autocast", autocast_arm},
      {"checkpointed", wrapped<CheckpointedChain>()},
      {"batch_norm", wrapped<BatchNormed>()},
      {"own_buffers", wrapped<BatchNormed>(Options().broadcast_buffers(false))},
      {"sync_batch_norm", wrapped<NormedChain<SyncBatchNorm>>()},
      {"cast_exchange",
       [](const Workload& workload, const Group& group) {
         return wrapped_arm(workload,
                            group,
                            Options().exchange(std::make_shared<CastExchange>(
                                group, torch::kBFloat16)));
       }},
      {"power_sgd",
       [](const Workload& workload, const Group& group) {
         return wrapped_arm(workload,
                            group,
                            Options().exchange(std::make_shared<PowerSGD>(
                                group, PowerSGDOptions().start_after(0))));
       }},
      {"accumulate4",
       [](const Workload& workload, const Group& group) {
         return std::make_unique<AccumulatingArm>(workload, group);
       }},
      {"average8",
       [](const Workload& workload, const Group& group) {
         return std::make_unique<AveragingArm>(workload, group);
       }},
      {"find_unused", wrapped(Options().find_unused_parameters(true))},
      {"zero", [](const Workload& workload, const Group& group) {
         return wrapped_arm(workload, group, Options(), sharded_sgd(group));
       }}};
}

}  // namespace ddp::bench
