#pragma once

#include <ddp/worker_env.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "samples/support/models.h"

namespace samples {

/// Names of the stages' work on one micro-batch, for a profiler.
inline constexpr const char* kFirstStage = "stage 1";
inline constexpr const char* kSecondStage = "stage 2";

/// The devices of the first and the second stage.
using StageDevices = std::pair<torch::Device, torch::Device>;

/// Pure: the devices of a rank's two stages. `given` names two for each rank of
/// this host, or none: then every rank takes two GPUs of its own where there
/// are so many, else one for both stages, else the CPU.
///
/// @throws c10::Error when `given` has another number of devices or one that
///   does not exist.
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

/// A network too large for one device, so to say: its first half lies on one
/// device and its second half on another.
///
/// A batch goes through in micro-batches: while the second stage works at one,
/// the first stage works at the next (GPipe's forward pass). The result does
/// not depend on their number. The backward pass runs in autograd's threads: of
/// two GPUs both at once, on the CPU one stage after the other.
///
/// Source: Huang et al., "GPipe", NeurIPS 2019.
class TwoStages : public Classifier {
 public:
  TwoStages(const StageSizes& sizes, const StageDevices& devices);

  /// @param images  [n, ...] on any device
  /// @returns scores [n, classes] on the second device.
  torch::Tensor forward(const torch::Tensor& images) override;

  /// For the next forward; at least 1. A batch that does not divide evenly may
  /// go in fewer.
  void micro_batches(int64_t count) { micro_batches_ = count; }

  const torch::nn::Sequential& first() const { return first_; }
  const torch::nn::Sequential& second() const { return second_; }
  const StageDevices& devices() const { return devices_; }

  /// The same network with the same parameters, undivided, on one device.
  torch::nn::Sequential undivided(torch::Device device) const;

 private:
  StageDevices devices_;
  torch::nn::Sequential first_, second_;
  int64_t micro_batches_ = 1;
};

/// Time of a pipelined pass through `stages` equal stages, as a part of the
/// time without micro-batches, when moving data costs nothing: the first stage
/// waits at the end, the last one at the start.
double ideal_pipeline_time(int64_t stages, int64_t micro_batches);

}  // namespace samples
