#include "dp/data_parallel/parallel.h"

#include "dp/data_parallel/aggregate.h"
#include "dp/data_parallel/detail/devices.h"
#include "dp/data_parallel/detail/replica_threads.h"
#include "dp/data_parallel/detail/replicas.h"
#include "dp/data_parallel/detail/scatter.h"

namespace dp::detail {
namespace {

std::vector<torch::Device> some_devices(
    const std::vector<torch::Device>& asked) {
  TORCH_CHECK(!asked.empty(), "Expected at least one device, but got none");
  return resolve_devices(asked, look_up_devices);
}

}  // namespace

std::vector<std::vector<torch::Tensor>> scatter_tensors(
    const std::vector<torch::Tensor>& tensors,
    const std::vector<torch::Device>& devices,
    int64_t dim) {
  const auto targets = some_devices(devices);
  std::vector<std::vector<torch::Tensor>> chunks;
  for (auto& part :
       scatter(tensors, targets, SplitRule{targets.size(), {}, {}}, dim)) {
    chunks.push_back(std::move(part.tensors));
  }
  return chunks;
}

std::vector<torch::Tensor> gather_tensors(const std::vector<PartResult>& parts,
                                          torch::Device target,
                                          int64_t dim) {
  target = resolve_device(target, look_up_devices);
  std::vector<torch::Tensor> gathered;
  for (const auto& tensors : leaves_by_place(parts)) {
    if (!tensors.front().defined()) {
      gathered.emplace_back();
      continue;
    }
    Parts of_place;
    of_place.dim = dim;
    for (const auto& tensor : tensors) {
      of_place.tensors.push_back(to_device(tensor, target));
    }
    gathered.push_back(concatenate(of_place));
  }
  return gathered;
}

std::vector<std::shared_ptr<torch::nn::Module>> replicate_module(
    const std::shared_ptr<torch::nn::Module>& module,
    const std::vector<torch::Device>& devices) {
  const auto targets = some_devices(devices);
  std::vector<size_t> members;
  for (size_t i = 0; i < targets.size(); ++i) {
    members.push_back(i);
  }
  Replicas kept(module,
                targets,
                nullptr,
                std::make_shared<std::vector<TrafficCounter>>(targets.size()));
  kept.refresh(members);
  return kept.modules();
}

void run_on(const std::vector<torch::Device>& devices,
            const std::function<void(size_t part)>& job) {
  std::vector<size_t> all;
  for (size_t i = 0; i < devices.size(); ++i) {
    all.push_back(i);
  }
  ReplicaThreads(devices).run(all, job);
}

torch::Device device_of(const std::vector<torch::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    if (tensor.defined()) {
      return tensor.device();
    }
  }
  return torch::kCPU;
}

void check_parts(size_t modules, size_t inputs, size_t devices) {
  TORCH_CHECK(modules == inputs && modules > 0,
              "Expected as many modules as inputs, at least one, but got ",
              modules,
              " modules and ",
              inputs,
              " inputs");
  TORCH_CHECK(devices == 0 || devices >= modules,
              "Expected a device for each of ",
              modules,
              " modules, but got ",
              devices);
}

}  // namespace dp::detail
