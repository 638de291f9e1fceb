#include "test/bench/arms.h"

#include <functional>
#include <limits>
#include <map>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/fully_sharded_data_parallel.h"
#include "ddp/graphed_step.h"
#include "ddp/optim/fused.h"
#include "test/bench/feature_arms.h"
#include "test/bench/training_arm.h"

namespace ddp::bench {
namespace {

std::unique_ptr<Arm> our_arm(const Workload& workload,
                             const MakeOptimizer& make_optimizer,
                             const DistributedDataParallelOptions& options) {
  return model_arm(workload,
                   DistributedDataParallel(network(workload), options),
                   make_optimizer);
}

Maker sharded(const MakeOptimizer& make_optimizer, bool reshards = true) {
  return [=](const Workload& workload, const Group& group) {
    return model_arm(
        workload,
        FullyShardedDataParallel(network(workload),
                                 FullyShardedDataParallelOptions()
                                     .process_group(group)
                                     .reshard_after_forward(reshards)),
        make_optimizer);
  };
}

/// `all_reduce` with a FusedSGD, by a recorded step.
class RecordedArm : public Arm {
 public:
  RecordedArm(const Workload& workload, const Group& group)
      : inputs_{input(workload), target(workload)},
        model_(network(workload),
               DistributedDataParallelOptions().process_group(group).exchange(
                   std::make_shared<AllReduce>(group))),
        optimizer_(model_->parameters(), torch::optim::SGDOptions(kRate)),
        step_(model_, optimizer_, [this](const GraphedStep::Tensors& in) {
          return torch::mse_loss(model_->forward(in[0]), in[1]);
        }) {
    for (int i = 0; i < 4; ++i) {  // three to warm up, one to record
      step();
    }
    TORCH_CHECK(step_.is_recorded(), step_.refusal());
  }

  void step() override { step_(inputs_); }

 private:
  GraphedStep::Tensors inputs_;
  DistributedDataParallel<torch::nn::Sequential> model_;
  FusedSGD optimizer_;
  GraphedStep step_;
};

std::unique_ptr<Arm> recorded_arm(const Workload& workload,
                                  const Group& group) {
  return std::make_unique<RecordedArm>(workload, group);
}

/// Creates the reducer as torch/nn/parallel/distributed.py does: first with one
/// bucket, then rebuilt with buckets of 1 MiB and 25 MiB.
std::shared_ptr<c10d::Reducer> c10d_reducer(const torch::nn::Sequential& net,
                                            c10::DeviceType device,
                                            const Group& group) {
  using c10d::ProcessGroup;
  auto ranks =
      c10::make_intrusive<ProcessGroup>(group->getRank(), group->getSize());
  ranks->setBackend(device, ProcessGroup::BackendType::CUSTOM, group);
  ranks->setDefaultBackend(ProcessGroup::BackendType::CUSTOM);
  ranks->setGroupName("bench");
  const auto parameters = net->parameters();
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      parameters, {std::numeric_limits<int64_t>::max()});
  std::reverse(buckets.begin(), buckets.end());
  return std::make_shared<c10d::Reducer>(
      parameters,
      buckets,
      ranks,
      /*expect_sparse_gradients=*/std::vector<bool>(parameters.size(), false),
      /*bucket_bytes_cap=*/c10d::kDefaultBucketBytesCap,
      /*find_unused_parameters=*/false,
      /*gradient_as_bucket_view=*/false,
      /*param_names=*/std::unordered_map<size_t, std::string>{},
      /*first_bucket_bytes_cap=*/c10d::kDefaultFirstBucketBytes,
      /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
}

std::unique_ptr<Arm> c10d_arm(const Workload& workload, const Group& group) {
  auto net = network(workload);
  return training_arm(
      workload,
      *net,
      [net, reducer = c10d_reducer(net, workload.device.type(), group)](
          const torch::Tensor& x) mutable {
        reducer->prepare_for_forward();
        reducer->rebuild_buckets();
        auto output = net->forward(x);
        reducer->prepare_for_backward({});
        return output;
      });
}

/// Lower bound for the time of any exchange of gradients: ranks that wait for
/// each other once per step.
std::unique_ptr<Arm> floor_arm(const Workload& workload, const Group& group) {
  auto net = network(workload);
  return training_arm(
      workload, *net, [net, group](const torch::Tensor& x) mutable {
        std::vector<torch::Tensor> one{torch::zeros({1}, x.device())};
        group->allreduce(one)->wait();
        return net->forward(x);
      });
}

Maker plain(const MakeOptimizer& make_optimizer) {
  return [make_optimizer](const Workload& workload, const Group&) {
    return model_arm(workload, network(workload), make_optimizer);
  };
}

Maker ours(const MakeOptimizer& make_optimizer,
           bool view = false,
           bool exchanges_alone = false) {
  return [=](const Workload& workload, const Group& group) {
    auto options = DistributedDataParallelOptions()
                       .process_group(group)
                       .gradient_as_bucket_view(view);
    if (exchanges_alone) {
      options.exchange(std::make_shared<AllReduce>(group));
    }
    return our_arm(workload, make_optimizer, options);
  };
}

Maker all_reduce(const MakeOptimizer& make_optimizer, bool view = false) {
  return ours(make_optimizer, view, /*exchanges_alone=*/true);
}

std::map<std::string, Maker> makers() {
  using namespace torch::optim;
  const auto momentum = SGDOptions(kRate).momentum(0.9);
  const AdamWOptions adamw(kRate);
  const auto fused = optimizer<FusedSGD>(SGDOptions(kRate));
  std::map<std::string, Maker> all{
      {"plain", plain(sgd())},
      {"floor", floor_arm},
      {"ours", ours(sgd())},
      {"ours_view", ours(sgd(), /*view=*/true)},
      {"all_reduce", all_reduce(sgd())},
      {"all_reduce_view", all_reduce(sgd(), /*view=*/true)},
      {"plain_fused", plain(fused)},
      {"ours_fused", ours(fused)},
      {"all_reduce_fused", all_reduce(fused)},
      {"all_reduce_recorded", recorded_arm},
      {"c10d", c10d_arm},
      {"plain_momentum", plain(optimizer<SGD>(momentum))},
      {"ours_momentum", ours(optimizer<FusedSGD>(momentum))},
      {"plain_adamw", plain(optimizer<AdamW>(adamw))},
      {"ours_adamw", ours(optimizer<FusedAdamW>(adamw))},
      {"ours_libtorch_adamw", ours(optimizer<AdamW>(adamw))},
      {"sharded_adamw", sharded(optimizer<FusedAdamW>(adamw))},
      {"sharded_whole_adamw",
       sharded(optimizer<FusedAdamW>(adamw), /*reshards=*/false)},
      {"sharded_libtorch_adamw", sharded(optimizer<AdamW>(adamw))}};
  all.merge(feature_makers());
  return all;
}

}  // namespace

Workload workload(const std::string& name) {
  using Model = Workload::Model;
  const std::map<std::string, Workload> all{
      {"mlp", {.layers = 8, .width = 1024}},
      {"mlp256", {.layers = 8, .width = 1024, .batch = 256}},
      {"wide", {.layers = 8, .width = 4096, .batch = 4096}},
      {"small", {.layers = 500, .width = 16}},
      {"resnet", {.model = Model::resnet}},
      {"resnet8", {.model = Model::resnet, .batch = 8}},
      {"transformer",
       {.model = Model::transformer, .layers = 6, .width = 256, .batch = 16}}};
  const auto found = all.find(name);
  TORCH_CHECK(
      found != all.end(), "Expected a model that arms.h names, but got ", name);
  return found->second;
}

std::unique_ptr<Arm> make_arm(const std::string& name,
                              const Workload& workload,
                              const Group& group) {
  if (name.rfind("cap", 0) == 0) {
    const double cap = std::stod(name.substr(3));
    return our_arm(workload,
                   sgd(),
                   DistributedDataParallelOptions()
                       .process_group(group)
                       .first_bucket_cap_mb(cap)
                       .bucket_cap_mb(cap));
  }
  const auto all = makers();
  const auto maker = all.find(name);
  TORCH_CHECK(
      maker != all.end(), "Expected an arm that arms.h names, but got ", name);
  return maker->second(workload, group);
}

}  // namespace ddp::bench
