#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <c10/util/StringUtil.h>
#include <ddp/worker_env.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "samples/support/devices.h"
#include "samples/support/models.h"

namespace samples {

/// Profiler scope names for the stages' work on one micro-batch.
inline constexpr const char* kFirstStage = "stage 1";
inline constexpr const char* kSecondStage = "stage 2";

/// The devices of the first and the second stage.
using StageDevices = std::pair<torch::Device, torch::Device>;

/// Returns the devices of a rank's two stages. `given` names two devices for
/// each rank of this host, or is empty. If it is empty, every rank uses two
/// GPUs of its own if there are enough GPUs, otherwise one GPU for both stages,
/// otherwise the CPU. Pure.
///
/// @throws c10::Error if `given` has a wrong number of devices or names a
///   device that does not exist.
inline StageDevices choose_stages(const std::vector<std::string>& given,
                                  const ddp::WorkerEnv& env,
                                  int gpu_count) {
  const auto gpu = [](int index) {
    return torch::Device(torch::kCUDA, static_cast<torch::DeviceIndex>(index));
  };
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

/// Sizes of `TwoStages`.
struct StageSizes {
  int64_t inputs = 64;  ///< pixels of an image
  int64_t width = 512;
  int64_t layers = 2;  ///< Linear(width, width) in each stage
  int64_t classes = 10;
};

/// Represents a network that is too large for one device: its first half is on
/// one device and its second half on another.
///
/// A batch is processed in micro-batches: while the second stage processes one,
/// the first stage processes the next (GPipe's forward pass). The result does
/// not depend on the number of micro-batches. The backward pass runs in
/// autograd's threads: two GPUs work concurrently, on the CPU the stages run
/// one after the other.
///
/// Source: Huang et al., "GPipe", NeurIPS 2019.
class TwoStages : public Classifier {
 public:
  TwoStages(const StageSizes& sizes, const StageDevices& devices);

  /// @param images  [n, ...] on any device
  /// @returns scores [n, classes] on the second device.
  torch::Tensor forward(const torch::Tensor& images) override;

  /// Sets the number of micro-batches of the next forward, at least 1. A batch
  /// that cannot be divided evenly may be split into fewer.
  void micro_batches(int64_t count) { micro_batches_ = count; }

  const torch::nn::Sequential& first() const { return first_; }
  const torch::nn::Sequential& second() const { return second_; }
  const StageDevices& devices() const { return devices_; }

  /// Returns an undivided network with the same parameters on one device.
  torch::nn::Sequential undivided(torch::Device device) const;

 private:
  static void add_layers(torch::nn::Sequential& stage,
                         int64_t inputs,
                         int64_t outputs,
                         int64_t count) {
    for (int64_t layer = 0; layer < count; ++layer) {
      stage->push_back(torch::nn::Linear(inputs, outputs));
      stage->push_back(torch::nn::ReLU());
    }
  }

  StageDevices devices_;
  torch::nn::Sequential first_, second_;
  int64_t micro_batches_ = 1;
};

inline TwoStages::TwoStages(const StageSizes& sizes,
                            const StageDevices& devices)
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

inline torch::Tensor TwoStages::forward(const torch::Tensor& images) {
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

inline torch::nn::Sequential TwoStages::undivided(torch::Device device) const {
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

/// Returns the ideal time of a pipelined pass through `stages` equal stages,
/// relative to the time without micro-batches. Transfers are assumed to cost
/// nothing: the first stage is idle at the end, the last one at the start.
inline double ideal_pipeline_time(int64_t stages, int64_t micro_batches) {
  return static_cast<double>(micro_batches + stages - 1) /
         static_cast<double>(micro_batches * stages);
}

}  // namespace samples
