#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/amp/grad_scaler.h"
#include "ddp/checkpoint/detail/checkpoint_file.h"
#include "ddp/checkpoint/detail/variable_entry.h"
#include "ddp/checkpoint/state_dict.h"
#include "ddp/data/distributed_sampler.h"
#include "ddp/exchanges/exchange.h"
#include "ddp/optim/model_averager.h"

namespace ddp {

/// Whose value of a variable a `Checkpoint` keeps.
enum class CheckpointScope { common, per_rank };

/// What it takes to go on with a training that was interrupted: it is bound to
/// the model, the optimizer and the like once, and then saved and loaded as
/// often as one likes. Several models, optimizers, samplers and scalers each
/// have a name.
///
/// A file holds, as Python's `torch.load(path)` with its defaults gives it:
/// @verbatim
///   {'model': state dict,          # keys as PyTorch's, no "module." prefix
///    'optimizer': {'state': ..., 'param_groups': ...},  # Python's layout
///    'epoch': 3, 'step': 120,
///    'sampler': {'epoch': 3, 'position': 1024, ...},
///    'scaler': {'scale': 65536.0, ...},             # {} where not enabled
///    'rng': [{'cpu': ..., 'cuda': [...]}, ...],         # by rank
///    'format_version': 2}
/// @endverbatim
/// and whatever was added, each under its name. 'cuda' are the states of the
/// process's GPUs, those that a model lies on first; it is empty where none
/// does. The first version, which had one state there, loads as well.
///
/// All tensors in it are CPU tensors; loading moves them to wherever the model
/// lies. Peak of host memory: every rank holds the whole file while it loads
/// one, rank 0 while it saves one. A file of Python's with the same entries
/// loads too, in any format of torch.save: each value is the one that was
/// saved, or the file is refused.
///
/// Models, samplers and exchanges are shared; optimizers, scalers, averagers
/// and variables must outlive the Checkpoint. Not thread-safe.
///
/// LibTorch's learning rate schedulers have no state to read. A new scheduler
/// counts the epochs again, and the optimizer keeps the loaded rate:
/// @code
///   torch::optim::StepLR scheduler(optimizer, 30, 0.1);
///   checkpoint.load("last.pt");
///   std::vector<double> rates;
///   for (auto& group : optimizer.param_groups()) {
///     rates.push_back(group.options().get_lr());
///   }
///   for (int64_t i = 0; i < checkpoint.epoch(); ++i) scheduler.step();
///   for (size_t g = 0; g < rates.size(); ++g) {
///     optimizer.param_groups()[g].options().set_lr(rates[g]);
///   }
/// @endcode
/// For ReduceLROnPlateauScheduler, which counts by metrics, there is no such
/// way.
///
/// Example:
/// @code
///   ddp::Checkpoint checkpoint(net);
///   double best = 0;
///   checkpoint.optimizer(optimizer).sampler(sampler).add("best", best);
///   if (resume) checkpoint.load("last.pt");
///   for (int64_t epoch = checkpoint.epoch(); epoch < epochs; ++epoch) {
///     sampler.set_epoch(epoch);
///     train(...);
///     checkpoint.epoch(epoch + 1).save("last.pt");
///   }
/// @endcode
/// With two models:
/// @code
///   ddp::Checkpoint checkpoint;
///   checkpoint.add("generator", generator)
///       .add("generator_optimizer", generator_optimizer)
///       .add("critic", critic)
///       .add("critic_optimizer", critic_optimizer)
///       .sampler(sampler);
/// @endcode
class Checkpoint {
 public:
  /// Of nothing yet.
  Checkpoint() = default;

  /// @param model  the plain module, or a wrapper such as
  ///   DistributedDataParallel: the file is the same.
  explicit Checkpoint(std::shared_ptr<torch::nn::Module> model);
  template <class Impl>
  explicit Checkpoint(const torch::nn::ModuleHolder<Impl>& model)
      : Checkpoint(std::shared_ptr<torch::nn::Module>(model.ptr())) {}

  /// Keeps a model, an optimizer, a sampler or a scaler under a name of its
  /// own, which is also its key in the file. What the functions below and the
  /// constructor keep has the name in the file above.
  ///
  /// @throws c10::Error for a name that is empty, taken, or "epoch", "step",
  ///   "rng" or "format_version".
  Checkpoint& add(std::string name, std::shared_ptr<torch::nn::Module> module);
  template <class Impl>
  Checkpoint& add(std::string name,
                  const torch::nn::ModuleHolder<Impl>& module) {
    return add(std::move(name),
               std::shared_ptr<torch::nn::Module>(module.ptr()));
  }
  Checkpoint& add(std::string name, torch::optim::Optimizer& optimizer);
  Checkpoint& add(std::string name, DistributedSampler sampler);
  Checkpoint& add(std::string name, GradScaler& scaler);
  /// Steps of an averager, and its outer parameters and momentum. That of a
  /// `PostLocalSGDOptimizer` is part of the optimizer's entry.
  Checkpoint& add(std::string name, ModelAverager& averager);
  /// The state of each rank's exchange: what `PowerSGD` has left out, the
  /// passes that a `SwitchExchange` has left. Ranks of another number than
  /// those that saved take the state of their rank modulo that number.
  Checkpoint& add(std::string name, std::shared_ptr<Exchange> exchange);
  /// A variable of the program, which must outlive the Checkpoint: `load`
  /// assigns it. A tensor that is defined keeps its device, and must have the
  /// saved shape and dtype.
  /// @param scope  `per_rank` saves and loads each rank's own value, for the
  ///   same number of ranks; `common` saves rank 0's and loads it everywhere.
  Checkpoint& add(const std::string& name,
                  bool& variable,
                  CheckpointScope scope = CheckpointScope::common);
  Checkpoint& add(const std::string& name,
                  int64_t& variable,
                  CheckpointScope scope = CheckpointScope::common);
  Checkpoint& add(const std::string& name,
                  double& variable,
                  CheckpointScope scope = CheckpointScope::common);
  Checkpoint& add(const std::string& name,
                  std::string& variable,
                  CheckpointScope scope = CheckpointScope::common);
  Checkpoint& add(const std::string& name,
                  torch::Tensor& variable,
                  CheckpointScope scope = CheckpointScope::common);

  /// LibTorch's SGD, Adam, AdamW, RMSprop, Adagrad or LBFGS, a fused one, or a
  /// ZeroRedundancyOptimizer of one of these but LBFGS: the file is the same.
  /// Of a PostLocalSGDOptimizer the averager's "step" is in it, too, as PyTorch
  /// has it.
  Checkpoint& optimizer(torch::optim::Optimizer& optimizer);
  /// The sampler of the training set, for resuming in the middle of an epoch.
  Checkpoint& sampler(DistributedSampler sampler);
  /// Save after its `update()`. A scaler that is not enabled loads nothing.
  Checkpoint& scaler(GradScaler& scaler);
  /// The ranks that save and load together. Null: all ranks.
  Checkpoint& process_group(c10::intrusive_ptr<c10d::Backend> group);

  /// The epoch to go on with.
  Checkpoint& epoch(int64_t epoch);
  int64_t epoch() const { return parts_.epoch; }
  /// The number of steps taken.
  Checkpoint& step(int64_t step);
  int64_t step() const { return parts_.step; }
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

  /// Every rank reads the file and puts what it holds into the models, the
  /// optimizers, the samplers, the scalers, the rank's random generators,
  /// `epoch()` and `step()`. The file must hold what was given to the
  /// Checkpoint, and may hold more; a bare state dict holds the model of the
  /// constructor alone. The random states are left as they are when the file
  /// has none that `save` wrote, or those of another number of ranks.
  ///
  /// Collective: all ranks load the same, or none does anything.
  /// @throws c10::Error on every rank when one of them finds the file missing,
  ///   cut off, damaged or an entry not fitting, whose name the error says, or
  ///   when ranks see different files; nothing is changed then.
  void load(const std::string& path);

 private:
  friend class CheckpointFolder;

  Checkpoint& add_variable(const std::string& name,
                           detail::CheckpointVariable variable,
                           CheckpointScope scope);

  detail::CheckpointParts parts_;
  c10::intrusive_ptr<c10d::Backend> group_;
};

}  // namespace ddp
