#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "ddp/amp/grad_scaler.h"
#include "ddp/checkpoint/detail/ranks.h"
#include "ddp/data/distributed_sampler.h"
#include "ddp/optim/model_averager.h"

namespace ddp::detail {

/// A rank and the number of ranks.
struct RankInfo {
  size_t rank = 0;
  size_t size = 1;
};

/// One named entry of a checkpoint.
class CheckpointEntry {
 public:
  using MakeValue = std::function<c10::IValue()>;
  using Apply = std::function<void()>;

  virtual ~CheckpointEntry() = default;

  /// Gathers the entry from all ranks. Collective. Returns a function that
  /// builds the value to write; only rank 0 calls it, before the training goes
  /// on. Tensors in the value share memory with the entry.
  ///
  /// @param trained  see `Checkpoint::trained`.
  virtual MakeValue collect(const Ranks& ranks,
                            std::optional<size_t> trained) const = 0;

  /// Validates a loaded value without changing anything, and returns a function
  /// that applies it.
  /// @throws c10::Error if the value does not fit.
  virtual Apply check(const c10::IValue& saved, RankInfo place) const = 0;

  /// Returns false if the entry ignores the file, which then need not contain
  /// it.
  virtual bool loads() const { return true; }

  /// Returns the entry's module; null if it is no module entry.
  virtual const torch::nn::Module* module() const { return nullptr; }
};

/// Creates the entry of an object. A module is shared; the optimizer, the
/// scaler and the averager must outlive the entry.
std::shared_ptr<CheckpointEntry> entry_of(
    std::shared_ptr<torch::nn::Module> module);
std::shared_ptr<CheckpointEntry> entry_of(torch::optim::Optimizer& optimizer);
std::shared_ptr<CheckpointEntry> entry_of(DistributedSampler sampler);
std::shared_ptr<CheckpointEntry> entry_of(GradScaler& scaler);
std::shared_ptr<CheckpointEntry> entry_of(ModelAverager& averager);

}  // namespace ddp::detail
