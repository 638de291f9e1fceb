#include "samples/experiments/model_parallel/two_stages.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <future>

#include "samples/support/devices.h"

namespace samples {
namespace {

void add_layers(torch::nn::Sequential& stage,
                int64_t inputs,
                int64_t outputs,
                int64_t count) {
  for (int64_t layer = 0; layer < count; ++layer) {
    stage->push_back(torch::nn::Linear(inputs, outputs));
    stage->push_back(torch::nn::ReLU());
  }
}

torch::Device gpu(int index) {
  return {torch::kCUDA, static_cast<torch::DeviceIndex>(index)};
}

}  // namespace

StageDevices choose_stages(const std::vector<std::string>& given,
                           const ddp::WorkerEnv& env,
                           int gpu_count) {
  const auto ranks = static_cast<size_t>(env.local_world_size);
  const auto first = 2 * static_cast<size_t>(env.local_rank);
  if (given.empty()) {
    const int rank = env.local_rank;
    if (gpu_count >= 2 * env.local_world_size) {
      return {gpu(2 * rank), gpu(2 * rank + 1)};
    }
    return gpu_count > 0 ? StageDevices{gpu(rank), gpu(rank)}
                         : StageDevices{torch::kCPU, torch::kCPU};
  }
  TORCH_CHECK(given.size() == 2 * ranks,
              "Expected two devices in --devices for each of ",
              ranks,
              " ranks on this host, but got ",
              c10::Join(",", given),
              ".");
  return {parse_device(given[first], gpu_count),
          parse_device(given[first + 1], gpu_count)};
}

TwoStages::TwoStages(const StageSizes& sizes, const StageDevices& devices)
    : devices_(devices) {
  add_layers(first_, sizes.inputs, sizes.width, 1);
  add_layers(first_, sizes.width, sizes.width, sizes.layers);
  add_layers(second_, sizes.width, sizes.width, sizes.layers);
  second_->push_back(torch::nn::Linear(sizes.width, sizes.classes));
  register_module("first", first_);
  register_module("second", second_);
  first_->to(devices.first);
  second_->to(devices.second);
}

torch::Tensor TwoStages::forward(const torch::Tensor& images) {
  const auto parts = images.flatten(1).chunk(micro_batches_);
  std::vector<std::promise<torch::Tensor>> between(parts.size());
  // The future ends with the last micro-batch, or with the first that failed.
  auto scores =
      std::async(std::launch::async, [&, settings = at::ThreadLocalState()] {
        // Use the caller's thread-local settings, so that autograd records as
        // in the caller's thread.
        const at::ThreadLocalStateGuard guard(settings);
        std::vector<torch::Tensor> results;
        for (auto& hidden : between) {
          const auto input = hidden.get_future().get();
          RECORD_USER_SCOPE(kSecondStage);
          results.push_back(second_->forward(input.to(devices_.second)));
        }
        return torch::cat(results);
      });
  for (size_t i = 0; i < parts.size(); ++i) {
    try {
      torch::Tensor hidden;
      {
        RECORD_USER_SCOPE(kFirstStage);
        hidden = first_->forward(parts[i].to(devices_.first));
      }
      between[i].set_value(hidden);
    } catch (...) {
      between[i].set_exception(std::current_exception());
      break;
    }
  }
  return scores.get();
}

torch::nn::Sequential TwoStages::undivided(torch::Device device) const {
  torch::nn::Sequential whole;
  for (const auto& stage : {first_, second_}) {
    for (const auto& layer : *stage) {
      const auto copy = layer.ptr()->clone(device);
      if (const auto linear =
              std::dynamic_pointer_cast<torch::nn::LinearImpl>(copy)) {
        whole->push_back(linear);
      } else {
        whole->push_back(torch::nn::ReLU());
      }
    }
  }
  return whole;
}

double ideal_pipeline_time(int64_t stages, int64_t micro_batches) {
  return static_cast<double>(micro_batches + stages - 1) /
         static_cast<double>(micro_batches * stages);
}

}  // namespace samples
