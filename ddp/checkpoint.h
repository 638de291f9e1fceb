#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/amp/grad_scaler.h"
#include "ddp/distributed_sampler.h"
#include "ddp/state_dict.h"

namespace ddp {

/// What it takes to go on with a training that was interrupted: it is bound to
/// the model, the optimizer and the like once, and then saved and loaded as
/// often as one likes.
///
/// A file holds, as Python's `torch.load(path)` with its defaults gives it:
/// @code
///   {'model': state dict,          # keys as PyTorch's, no "module." prefix
///    'optimizer': {'state': ..., 'param_groups': ...},  # Python's layout
///    'epoch': 3, 'step': 120,
///    'sampler': {'epoch': 3, 'position': 1024, ...},
///    'scaler': {'scale': 65536.0, ...},             # {} where not enabled
///    'rng': [{'cpu': ..., 'cuda': ...}, ...],           # by rank
///    'format_version': 1}
/// @endcode
/// All tensors in it are CPU tensors; loading moves them to wherever the model
/// lies. A file of Python's with the same entries loads too, in any format of
/// torch.save: each value is the one that was saved, or the file is refused.
///
/// The model is shared; the optimizer and the scaler must outlive the
/// Checkpoint. Not thread-safe.
///
/// Example:
/// @code
///   ddp::Checkpoint checkpoint(net);
///   checkpoint.optimizer(optimizer).sampler(sampler);
///   if (resume) checkpoint.load("last.pt");
///   for (int64_t epoch = checkpoint.epoch(); epoch < epochs; ++epoch) {
///     sampler.set_epoch(epoch);
///     train(...);
///     checkpoint.epoch(epoch + 1).save("last.pt");
///   }
/// @endcode
class Checkpoint {
 public:
  /// @param model  the plain module, or a wrapper such as
  ///   DistributedDataParallel: the file is the same.
  explicit Checkpoint(std::shared_ptr<torch::nn::Module> model);
  template <class Impl>
  explicit Checkpoint(const torch::nn::ModuleHolder<Impl>& model)
      : Checkpoint(std::shared_ptr<torch::nn::Module>(model.ptr())) {}

  /// LibTorch's SGD, Adam, AdamW, RMSprop or Adagrad, a fused one, or a
  /// ZeroRedundancyOptimizer of one of these: the file is the same.
  Checkpoint& optimizer(torch::optim::Optimizer& optimizer);
  /// The sampler of the training set, for resuming in the middle of an epoch.
  Checkpoint& sampler(DistributedSampler sampler);
  /// Save after its `update()`. A scaler that is not enabled loads nothing.
  Checkpoint& scaler(GradScaler& scaler);
  /// The ranks that save and load together. Null: all ranks.
  Checkpoint& process_group(c10::intrusive_ptr<c10d::Backend> group);

  /// The epoch to go on with.
  Checkpoint& epoch(int64_t epoch);
  int64_t epoch() const { return epoch_; }
  /// The number of steps taken.
  Checkpoint& step(int64_t step);
  int64_t step() const { return step_; }
  /// Number of examples that this rank has trained on in the running pass of
  /// this program. Needed only to save in the middle of an epoch with a data
  /// loader that has worker threads, whose sampler is ahead of the training.
  /// Unset: as many as the sampler has given out.
  Checkpoint& trained(std::optional<size_t> examples);

  /// Rank 0 writes the file, in one step: a crash, kill or full disk at any
  /// point leaves the previous file, whole. The random states are of all ranks.
  ///
  /// Collective: returns when the file is on the disk.
  /// @throws c10::Error on every rank, with rank 0's reason.
  void save(const std::string& path) const;

  /// Every rank reads the file and puts what it holds into the model, the
  /// optimizer, the sampler, the scaler, the rank's random generators,
  /// `epoch()` and `step()`. The file must hold what was given to the
  /// Checkpoint; a bare state dict holds the model alone. The random states are
  /// left as they are when the file has none that `save` wrote, or those of
  /// another number of ranks.
  ///
  /// Collective: all ranks load the same, or none does anything.
  /// @throws c10::Error on every rank when one of them finds the file missing,
  ///   cut off, damaged or not fitting, or when ranks see different files;
  ///   nothing is changed then.
  void load(const std::string& path);

 private:
  std::shared_ptr<torch::nn::Module> model_;
  torch::optim::Optimizer* optimizer_ = nullptr;
  std::optional<DistributedSampler> sampler_;
  GradScaler* scaler_ = nullptr;
  c10::intrusive_ptr<c10d::Backend> group_;
  int64_t epoch_ = 0;
  int64_t step_ = 0;
  std::optional<size_t> trained_;
};

}  // namespace ddp
