#include "test/bench/arms.h"

#include <limits>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "ddp/distributed_data_parallel.h"
#include "ddp/optim/fused.h"
#include "test/bench/training_arm.h"

namespace ddp::bench {
namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;

template <typename Optimizer>
std::unique_ptr<Arm> our_arm(const Workload& workload,
                             const Group& group,
                             bool view) {
  Chain net(workload);
  DistributedDataParallel model(net,
                                DistributedDataParallelOptions()
                                    .process_group(group)
                                    .gradient_as_bucket_view(view));
  return training_arm<Optimizer>(
      workload, net, [model](const torch::Tensor& x) mutable {
        return model->forward(x);
      });
}

/// As torch/nn/parallel/distributed.py makes it: first one bucket, then rebuilt
/// with 1 MiB and 25 MiB.
std::shared_ptr<c10d::Reducer> c10d_reducer(const Chain& net,
                                            const Group& group) {
  using c10d::ProcessGroup;
  auto ranks =
      c10::make_intrusive<ProcessGroup>(group->getRank(), group->getSize());
  ranks->setBackend(c10::kCPU, ProcessGroup::BackendType::CUSTOM, group);
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
  Chain net(workload);
  return training_arm(workload,
                      net,
                      [net, reducer = c10d_reducer(net, group)](
                          const torch::Tensor& x) mutable {
                        reducer->prepare_for_forward();
                        reducer->rebuild_buckets();
                        auto output = net->forward(x);
                        reducer->prepare_for_backward({});
                        return output;
                      });
}

}  // namespace

Workload workload(const std::string& name) {
  if (name == "mlp") {
    return {.layers = 8, .width = 1024};
  }
  if (name == "small") {
    return {.layers = 500, .width = 16};
  }
  TORCH_CHECK(false, "Expected the model mlp or small, but got ", name);
}

std::vector<std::string> arm_names() {
  return {"plain", "ours", "ours_view", "ours_fused", "c10d"};
}

std::unique_ptr<Arm> make_arm(const std::string& name,
                              const Workload& workload,
                              const Group& group) {
  if (name == "plain") {
    Chain net(workload);
    return training_arm(workload, net, [net](const torch::Tensor& x) mutable {
      return net->forward(x);
    });
  }
  if (name == "ours" || name == "ours_view") {
    return our_arm<torch::optim::SGD>(workload, group, name == "ours_view");
  }
  if (name == "ours_fused") {
    return our_arm<FusedSGD>(workload, group, /*view=*/false);
  }
  if (name == "c10d") {
    return c10d_arm(workload, group);
  }
  TORCH_CHECK(
      false,
      "Expected the arm plain, ours, ours_view, ours_fused or c10d, but got ",
      name);
}

}  // namespace ddp::bench
