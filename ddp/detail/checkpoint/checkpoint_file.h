#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "ddp/amp/grad_scaler.h"
#include "ddp/detail/checkpoint/optimizer_state.h"
#include "ddp/distributed_sampler.h"
#include "ddp/state_dict.h"

namespace ddp::detail {

/// What a checkpoint is taken of; optimizer and scaler may be null.
struct CheckpointParts {
  torch::nn::Module* model = nullptr;
  torch::optim::Optimizer* optimizer = nullptr;
  std::optional<DistributedSampler> sampler;
  GradScaler* scaler = nullptr;
};

/// The GPU that the model lies on, if it does.
std::optional<c10::Device> gpu_of(const torch::nn::Module& model);

/// A checkpoint as it is written.
///
/// @param sampler  where the sampler is, if there is one.
/// @param rng  the random states by rank (`rng_value`).
c10::IValue checkpoint_to_value(const CheckpointParts& parts,
                                const std::optional<SamplerState>& sampler,
                                int64_t epoch,
                                int64_t step,
                                const std::vector<c10::IValue>& rng);

/// What was read from a file, and fits the parts it was read for.
struct CheckpointContent {
  std::string content_id;
  StateDict model;
  std::optional<OptimizerUpdate> optimizer;
  std::optional<SamplerState> sampler;
  std::optional<GradScalerState> scaler;
  std::optional<c10::IValue> rng;  ///< of this rank
  std::optional<int64_t> epoch;
  std::optional<int64_t> step;
};

/// Reads and checks a file; changes nothing.
/// @throws c10::Error that names the file and what is wrong.
CheckpointContent read_checkpoint(const std::string& path,
                                  const CheckpointParts& parts,
                                  size_t rank,
                                  size_t world_size);

/// Puts all but epoch and step in place.
void apply(CheckpointContent content, const CheckpointParts& parts);

}  // namespace ddp::detail
