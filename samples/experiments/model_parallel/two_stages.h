#pragma once

#include <ddp/worker_env.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

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
StageDevices choose_stages(const std::vector<std::string>& given,
                           const ddp::WorkerEnv& env,
                           int gpu_count);

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
  StageDevices devices_;
  torch::nn::Sequential first_, second_;
  int64_t micro_batches_ = 1;
};

/// Returns the ideal time of a pipelined pass through `stages` equal stages,
/// relative to the time without micro-batches. Transfers are assumed to cost
/// nothing: the first stage is idle at the end, the last one at the start.
double ideal_pipeline_time(int64_t stages, int64_t micro_batches);

}  // namespace samples
