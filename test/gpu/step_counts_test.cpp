#include <algorithm>
#include <functional>
#include <memory>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include <c10/core/StreamGuard.h>
#include <torch/cuda.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/cast_exchange.h"
#include "dp/data_parallel.h"
#include "test/fake_gpu/control.h"
#include "test/gpu/nccl_ranks.h"
#include "test/gpu/schedule.h"
#include "test/support/catch.h"

// Checks the exact number of GPU operations that a step adds to the plain
// module's step. A larger number is a regression. If a number becomes smaller,
// adapt the test.
namespace step_counts_test {

using fake_gpu::Counts;
using torch::Device;

constexpr uint64_t kSteps = 2;
constexpr uint64_t kLayers = 6;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    layers = register_module("layers", torch::nn::Sequential());
    for (uint64_t i = 0; i < kLayers; ++i) {
      layers->push_back(torch::nn::Linear(32, 32));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers{nullptr};
};
TORCH_MODULE(Net);

Net make_net(Device device) {
  Net net;
  net->to(device);
  return net;
}

/// Returns the counts of the process in `kSteps` steps of all ranks that call
/// `meet`, after some warm-up steps.
/// @param local_pass  accumulates gradients before the pass of each step
template <typename Model, typename Meet>
Counts counts_of(
    Model& model,
    Device device,
    const Meet& meet,
    const std::function<void(const torch::Tensor& rows)>& local_pass = {}) {
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  const auto rows = torch::ones({12, 32}, device);
  const auto train = [&](uint64_t steps) {
    for (uint64_t step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      if (local_pass) {
        local_pass(rows);
      }
      model->forward(rows).sum().backward();
      optimizer.step();
    }
  };
  const auto synchronize = [] {
    for (c10::DeviceIndex i = 0; i < torch::cuda::device_count(); ++i) {
      torch::cuda::synchronize(i);
    }
  };
  train(3);
  meet();
  synchronize();
  meet();
  fake_gpu::reset_counts();
  meet();
  train(kSteps);
  meet();
  const auto counts = fake_gpu::counts();
  meet();
  synchronize();
  // No rank may start its next collective while another one synchronises.
  meet();
  return counts;
}

}  // namespace step_counts_test

namespace ddp {
namespace step_counts_test {

using namespace ::step_counts_test;
using test::any_schedule;
using test::has_gpus;
using test::NcclRank;
using test::run_nccl_ranks;
using Options = DistributedDataParallelOptions;

/// Runs two ranks and returns rank 0's result.
template <typename Measure>
auto on_rank_0(const Measure& measure) {
  std::invoke_result_t<Measure, const NcclRank&> result;
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    auto mine = measure(rank);
    if (rank.rank == 0) {
      result = std::move(mine);
    }
  });
  return result;
}

/// Returns options with one bucket per layer.
Options a_bucket_a_layer(const NcclRank& rank) {
  const double cap = (32 * 32 + 32) * 4 / 1024. / 1024;
  return Options()
      .process_group(rank.group)
      .first_bucket_cap_mb(cap)
      .bucket_cap_mb(cap);
}

TEST_CASE("GPU operations of a step over NCCL", "[gpu][stand-in]") {
  const bool as_view = GENERATE(false, true);
  const bool finds_unused = GENERATE(false, true);
  REQUIRE(has_gpus(2));
  INFO(any_schedule());
  const auto [plain, wrapped] = on_rank_0([&](const NcclRank& rank) {
    auto alone = make_net(rank.device);
    const auto without = counts_of(alone, rank.device, rank.meet);
    auto net = make_net(rank.device);
    DistributedDataParallel model(net,
                                  a_bucket_a_layer(rank)
                                      .gradient_as_bucket_view(as_view)
                                      .find_unused_parameters(finds_unused));
    const auto with = counts_of(model, rank.device, rank.meet);
    return std::pair(without, with);
  });
  CHECK(plain.host_synchronizes() == 0);
  CHECK(plain.nccl_calls() == 0);
  CHECK(plain.event_waits == 0);
  CHECK(plain.copies() == 0);

  const uint64_t passes = 2 * kSteps;  // of both ranks
  const uint64_t buckets = passes * kLayers;
  const uint64_t used_maps = finds_unused ? passes : 0;
  CHECK(wrapped.all_reduces == buckets + used_maps);
  CHECK(wrapped.nccl_calls() == wrapped.all_reduces);
  // NCCL's stream waits for the gradients, and the caller's stream for NCCL.
  CHECK(wrapped.event_waits == 2 * wrapped.all_reduces);
  // One kernel gathers the gradients, one divides them.
  CHECK(wrapped.kernels == plain.kernels + 2 * buckets);
  CHECK(wrapped.operators == plain.operators);
  CHECK(wrapped.allocations == 0);
  CHECK(wrapped.pinned_allocations == 0);
  CHECK(wrapped.host_synchronizes() == 0);
  // Per pass: a copy of this rank's vote and of its used map.
  CHECK(wrapped.copies_on_device == passes + used_maps);
  CHECK(wrapped.copies() == wrapped.copies_on_device);
  CHECK(wrapped.event_records == 3 * wrapped.all_reduces);
  CHECK(wrapped.event_queries == 0);
}

// The program holds none of these gradients.
TEST_CASE("an average of accumulated gradients is not copied",
          "[gpu][stand-in]") {
  REQUIRE(has_gpus(2));
  INFO(any_schedule());
  const auto [plain, wrapped] = on_rank_0([&](const NcclRank& rank) {
    auto alone = make_net(rank.device);
    const auto without = counts_of(
        alone, rank.device, rank.meet, [&](const torch::Tensor& rows) {
          alone->forward(rows).sum().backward();
        });
    auto net = make_net(rank.device);
    DistributedDataParallel model(net, a_bucket_a_layer(rank));
    const auto with = counts_of(
        model, rank.device, rank.meet, [&](const torch::Tensor& rows) {
          const NoSyncGuard local(*model);
          model->forward(rows).sum().backward();
        });
    return std::pair(without, with);
  });
  const uint64_t passes = 2 * kSteps;  // of both ranks, that average
  CHECK(wrapped.kernels == plain.kernels + 2 * passes * kLayers);
  CHECK(wrapped.copies_on_device == passes);  // this rank's vote
}

TEST_CASE("marks beside the buckets follow the stream of the passes",
          "[gpu][stand-in]") {
  REQUIRE(has_gpus(2));
  INFO(any_schedule());
  const auto counts = on_rank_0([&](const NcclRank& rank) {
    auto net = make_net(rank.device);
    DistributedDataParallel model(
        net,
        a_bucket_a_layer(rank).exchange(
            std::make_shared<CastExchange>(rank.group, torch::kBFloat16)));
    const c10::StreamGuard other(rank.new_stream());
    return counts_of(model, rank.device, rank.meet);
  });
  const uint64_t passes = 2 * kSteps;  // of both ranks
  CHECK(counts.all_reduces == passes * (kLayers + 1));
  // No wait for the stream on which the model was wrapped.
  CHECK(counts.event_waits == 2 * counts.all_reduces);
  CHECK(counts.host_synchronizes() == 0);
}

/// A module under c10d::Reducer, used as in PyTorch's DDP. Its bucket views do
/// not work with LibTorch's optimizers.
class C10dModel {
 public:
  C10dModel(const Net& net, const NcclRank& rank, int64_t cap) : net_(net) {
    auto ranks = c10::make_intrusive<c10d::ProcessGroup>(rank.rank,
                                                         rank.group->getSize());
    using Type = c10d::ProcessGroup::BackendType;
    ranks->setBackend(c10::kCUDA, Type::CUSTOM, rank.group);
    ranks->setDefaultBackend(Type::CUSTOM);
    ranks->setGroupName("counts");
    const auto parameters = net_->parameters();
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
        parameters, {static_cast<size_t>(cap)});
    std::reverse(buckets.begin(), buckets.end());
    reducer_ = std::make_shared<c10d::Reducer>(
        parameters,
        buckets,
        ranks,
        /*expect_sparse_gradients=*/std::vector<bool>(parameters.size(), false),
        /*bucket_bytes_cap=*/cap,
        /*find_unused_parameters=*/false,
        /*gradient_as_bucket_view=*/false,
        /*param_names=*/std::unordered_map<size_t, std::string>{},
        /*first_bucket_bytes_cap=*/cap,
        /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false,
        /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
  }

  C10dModel* operator->() { return this; }
  std::vector<torch::Tensor> parameters() const { return net_->parameters(); }
  torch::Tensor forward(const torch::Tensor& x) {
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
    auto output = net_->forward(x);
    reducer_->prepare_for_backward({});
    return output;
  }

 private:
  Net net_;
  std::shared_ptr<c10d::Reducer> reducer_;
};

TEST_CASE("a step asks no more of the GPU than c10d::Reducer's",
          "[gpu][stand-in]") {
  REQUIRE(has_gpus(2));
  INFO(any_schedule());
  const auto [ours, theirs] = on_rank_0([&](const NcclRank& rank) {
    auto net = make_net(rank.device);
    DistributedDataParallel model(net, a_bucket_a_layer(rank));
    const auto mine = counts_of(model, rank.device, rank.meet);
    C10dModel other(make_net(rank.device), rank, (32 * 32 + 32) * 4);
    const auto others = counts_of(other, rank.device, rank.meet);
    return std::pair(mine, others);
  });
  CHECK(ours.nccl_calls() == theirs.nccl_calls());
  CHECK(ours.kernels <= theirs.kernels);
  CHECK(ours.copies() <= theirs.copies());
  CHECK(ours.event_records <= theirs.event_records);
  CHECK(ours.event_queries <= theirs.event_queries);
  CHECK(ours.event_waits <= theirs.event_waits);
  CHECK(ours.host_synchronizes() <= theirs.host_synchronizes());
  CHECK(ours.allocations <= theirs.allocations);
}

}  // namespace step_counts_test
}  // namespace ddp

namespace dp {
namespace step_counts_test {

using namespace ::step_counts_test;

TEST_CASE("GPU operations of a step over devices", "[gpu][stand-in]") {
  const int count = GENERATE(2, 3);
  REQUIRE(ddp::test::has_gpus(count));
  INFO(ddp::test::any_schedule());
  const Device first(torch::kCUDA, 0);
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) {
    devices.emplace_back(torch::kCUDA, static_cast<c10::DeviceIndex>(i));
  }
  const auto nobody = [] {};
  auto alone = make_net(first);
  const auto plain = counts_of(alone, first, nobody);
  auto net = make_net(first);
  DataParallel model(net, DataParallelOptions().devices(devices));
  const auto wrapped = counts_of(model, first, nobody);

  CHECK(wrapped.host_synchronizes() == 0);
  const uint64_t replicas = kSteps * static_cast<uint64_t>(count);
  const uint64_t others = replicas - kSteps;
  // The parameters, in one broadcast to all devices.
  CHECK(wrapped.broadcasts == replicas);
  CHECK(wrapped.nccl_calls() == wrapped.broadcasts);
  // For each other replica: its rows, its results and each gradient. One of
  // these copies uses a temporary, because the stand-in's devices cannot access
  // each other.
  constexpr uint64_t kGradients = 2 * kLayers;
  CHECK(wrapped.copies() == wrapped.copies_on_device);
  CHECK(wrapped.copies_on_device == (kGradients + 3) * others);
  // A copy between GPUs makes the streams of both wait for each other; a
  // broadcast makes the streams of each GPU wait twice. Autograd makes the
  // first GPU wait for each gradient, and each replica for the gradient of its
  // results.
  CHECK(wrapped.event_waits == 2 * wrapped.copies_on_device +
                                   (kGradients + 1) * others + 2 * replicas);
  // Further events are recorded when autograd's threads release the operands of
  // a copy.
  CHECK(wrapped.event_records >= wrapped.event_waits);
  CHECK(wrapped.event_records <= wrapped.event_waits + 3 * others);
  CHECK(wrapped.allocations == 0);
  CHECK(wrapped.pinned_allocations == 0);
  CHECK(wrapped.kernels == plain.kernels + replicas);
  // Each other replica's passes, with the sums of its gradients. The results
  // are concatenated once per step.
  CHECK(wrapped.operators ==
        plain.operators + (kGradients + 23) * others + kSteps);
}

}  // namespace step_counts_test
}  // namespace dp
