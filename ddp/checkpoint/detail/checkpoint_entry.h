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

/// The rank that loads, and the number of ranks.
struct RankOf {
  size_t rank = 0;
  size_t size = 1;
};

/// What a checkpoint keeps under one name.
class CheckpointEntry {
 public:
  using MakeValue = std::function<c10::IValue()>;
  using Apply = std::function<void()>;

  virtual ~CheckpointEntry() = default;

  /// Collective. Returns what makes the value that is written; rank 0 calls it,
  /// before anything is trained on. Tensors in it share memory with the entry.
  ///
  /// @param trained  as of `Checkpoint::trained`.
  virtual MakeValue collect(const Ranks& ranks,
                            std::optional<size_t> trained) const = 0;

  /// Checks what was read from a file; changes nothing. Returns what puts it in
  /// place.
  /// @throws c10::Error when it does not fit.
  virtual Apply check(const c10::IValue& saved, RankOf place) const = 0;

  /// False: it takes nothing from a file, which need not have it.
  virtual bool loads() const { return true; }

  /// Its module, if it is one.
  virtual const torch::nn::Module* module() const { return nullptr; }
};

std::shared_ptr<CheckpointEntry> entry_of(
    std::shared_ptr<torch::nn::Module> module);
std::shared_ptr<CheckpointEntry> entry_of(torch::optim::Optimizer& optimizer);
std::shared_ptr<CheckpointEntry> entry_of(DistributedSampler sampler);
std::shared_ptr<CheckpointEntry> entry_of(GradScaler& scaler);
std::shared_ptr<CheckpointEntry> entry_of(ModelAverager& averager);

}  // namespace ddp::detail
