#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/amp/grad_scaler.h"
#include "ddp/checkpoint/state/stateful.h"
#include "ddp/checkpoint/state_dict.h"
#include "ddp/data/distributed_sampler.h"

namespace ddp {

namespace detail {
class Communicator;
struct TorchFile;

/// True for the types of variables that a `Checkpoint` saves.
template <class Type>
constexpr bool is_variable = std::disjunction_v<std::is_same<Type, bool>,
                                                std::is_same<Type, int64_t>,
                                                std::is_same<Type, double>,
                                                std::is_same<Type, std::string>,
                                                std::is_same<Type, at::Tensor>>;

/// Returns an adapter of a variable, which must outlive the result.
/// @param name  the entry's name, for errors.
template <class Type>
std::shared_ptr<Stateful> variable_state(const std::string& name,
                                         Type& variable,
                                         CheckpointScope scope);

/// An entry of a `Checkpoint`.
struct CheckpointEntry {
  std::string name;
  std::shared_ptr<Stateful> object;
  bool is_loaded = true;  ///< false: a disabled scaler, which ignores the file
  const torch::nn::Module* module = nullptr;           ///< of a model
  const torch::optim::Optimizer* optimizer = nullptr;  ///< of LibTorch
};
}  // namespace detail

/// Saves and restores an interrupted training. Bind the model, the optimizer
/// and so on once; then save and load as often as needed. Several models,
/// optimizers, samplers and scalers each have a name.
///
/// A file contains, as Python's `torch.load(path)` returns it with its
/// defaults:
/// @verbatim
///   {'model': state dict,          # keys as PyTorch's, no "module." prefix
///    'optimizer': {'state': ..., 'param_groups': ...},  # Python's layout
///    'epoch': 3, 'step': 120,
///    'sampler': {'epoch': 3, 'position': 1024, ...},
///    'scaler': {'scale': 65536.0, ...},             # {} where not enabled
///    'rng': [{'cpu': ..., 'cuda': [...]}, ...],         # by rank
///    'format_version': 2}
/// @endverbatim
/// and each added entry under its name. 'cuda' are the random states of the
/// process's GPUs; the GPUs of the models come first. It is empty if no model
/// is on a GPU.
///
/// All tensors in the file are CPU tensors; loading copies them to the device
/// of the model. Loading maps the file: the ranks of a host read its tensors
/// from the kernel's page cache, one after the other. Saving copies tensors of
/// GPUs, of sharded models and of their optimizers to the host memory of rank
/// 0, one after the other. A file from Python with the same entries
/// loads too, if torch.save of PyTorch 1.6 or later wrote it with pickle
/// protocol 2 or later, and its numbers are not NumPy's. The floating-point
/// tensors of a model, in any file, are converted to the dtype of the model,
/// and whole numbers may stand for floats. Any other value of another type or
/// shape is an error.
///
/// Models, samplers and objects in a shared_ptr are shared; optimizers,
/// scalers, other objects and variables must outlive the Checkpoint. Not
/// thread-safe.
///
/// LibTorch's learning rate schedulers have no readable state. To resume, a new
/// scheduler counts the epochs again, and the optimizer keeps the loaded rate:
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
/// This does not work for ReduceLROnPlateauScheduler, which depends on metrics.
///
/// Example:
/// @code
///   ddp::Checkpoint checkpoint(net);
///   double best = 0;
///   checkpoint.add("optimizer", optimizer)
///       .add("sampler", sampler)
///       .add("best", best);
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
///       .add("sampler", sampler);
/// @endcode
class Checkpoint {
 public:
  /// Creates a checkpoint without entries.
  Checkpoint() = default;

  /// Creates a checkpoint of a model with the name "model".
  /// @param model  the plain module, or a wrapper such as
  ///   DistributedDataParallel: the file is the same.
  /// @throws c10::Error if `model` is null.
  explicit Checkpoint(std::shared_ptr<torch::nn::Module> model);
  /// As above, for a module holder.
  template <class Impl>
  explicit Checkpoint(const torch::nn::ModuleHolder<Impl>& model)
      : Checkpoint(std::shared_ptr<torch::nn::Module>(model.ptr())) {}

  /// Adds a model under a name, which is also its key in the file. The
  /// constructor uses a name of the file format above.
  ///
  /// @throws c10::Error if the name is empty, already used, or "epoch", "step",
  ///   "rng", "format_version" or "save_id", or if the module is null.
  Checkpoint& add(std::string name, std::shared_ptr<torch::nn::Module> module);
  /// Adds a model by its holder.
  template <class Impl>
  Checkpoint& add(std::string name,
                  const torch::nn::ModuleHolder<Impl>& module) {
    return add(std::move(name),
               std::shared_ptr<torch::nn::Module>(module.ptr()));
  }
  /// Adds an optimizer: LibTorch's SGD, Adam, AdamW, RMSprop or Adagrad, a
  /// fused one, or a ZeroRedundancyOptimizer of any of these. A class derived
  /// from one of these is saved as that one, without state of its own, unless
  /// the class is `Stateful`. Another class that is not `Stateful`, for example
  /// LBFGS, is an error of `save` and `load` (c10::Error on all ranks). The
  /// file is the same for all of them.
  template <class Type,
            std::enable_if_t<std::is_base_of_v<torch::optim::Optimizer, Type>,
                             int> = 0>
  Checkpoint& add(std::string name, Type& optimizer) {
    return add_optimizer(std::move(name), optimizer);
  }
  /// Adds the sampler of a training set, to resume in the middle of an epoch.
  Checkpoint& add(std::string name, DistributedSampler sampler);
  /// Adds a scaler. Save after its `update()`. A disabled scaler ignores the
  /// file.
  Checkpoint& add(std::string name, GradScaler& scaler);
  /// Adds an object with a state: a `ModelAverager`, or an object of the
  /// program's own class.
  Checkpoint& add(std::string name, Stateful& object);
  /// As above, for a shared object: an `Exchange`, for example for the errors
  /// of `PowerSGD`, which checks the sizes of its state only in the next pass:
  /// it throws if they do not fit.
  /// @throws c10::Error as above, or if `object` is null.
  Checkpoint& add(std::string name, std::shared_ptr<Stateful> object);
  /// Adds a variable of the program, which must outlive the Checkpoint; `load`
  /// assigns it. A defined tensor keeps its device, and must have the saved
  /// shape and dtype. An undefined one becomes the saved tensor, on the CPU.
  /// @param variable  a bool, int64_t, double, std::string or torch::Tensor.
  /// @param scope     selects the ranks that save their values.
  template <class Type, std::enable_if_t<detail::is_variable<Type>, int> = 0>
  Checkpoint& add(const std::string& name,
                  Type& variable,
                  CheckpointScope scope = CheckpointScope::common) {
    return add(name, detail::variable_state(name, variable, scope));
  }

  /// Sets the ranks that save and load together; null for all ranks of
  /// `init_process_group`. Without that call each process saves and loads
  /// alone.
  Checkpoint& process_group(c10::intrusive_ptr<c10d::Backend> group);

  /// Sets the epoch to continue with. `load` sets it too.
  Checkpoint& epoch(int64_t epoch);
  /// Returns the epoch to continue with.
  int64_t epoch() const { return epoch_; }
  /// Sets the number of steps made. `load` sets it too.
  Checkpoint& step(int64_t step);
  /// Returns the number of steps made.
  int64_t step() const { return step_; }

  /// Saves all entries; rank 0 writes the file, within the group's time-out.
  /// The file is replaced atomically: after a crash, a kill, a full disk or an
  /// exception at any point the file is the complete previous or the complete
  /// new one. The random states of all ranks are saved.
  ///
  /// Collective: returns when the file is on the disk.
  /// @throws c10::Error on every rank, with the reason of the first rank that
  ///   failed.
  void save(const std::string& path) const;

  /// Saves all entries as a folder, into which all ranks write at the same
  /// time: a model of type `FullyShardedDataParallel` and its optimizer are not
  /// gathered. Each rank writes its part of each parameter and of the
  /// optimizer's state. Rank 0 writes all else.
  ///
  /// The tensors are in files of safetensors, under Python's names:
  /// "fc1.weight" for the entry "model" ("NAME.fc1.weight" for another model)
  /// and "NAME.state.fc1.weight.exp_avg" for an optimizer, as
  /// torch.distributed.checkpoint names them with flatten_optimizer_state_dict.
  /// Its HuggingFaceStorageReader reads the folder. The file training.pt has
  /// the rest in the format of `save`, and the whole state of an optimizer that
  /// is `Stateful`, such as a `ZeroRedundancyOptimizer`. Each file has the
  /// random 'save_id' of the save, so that `load` finds files of two saves.
  ///
  /// The folder is replaced atomically, as a whole: it is first PATH.tmp. If a
  /// rank is killed at any point, the complete previous or the complete new
  /// folder is there. Only one training at a time may write to a folder. The
  /// ranks of several hosts need a file system that all of them share. A file
  /// system that cannot exchange two folders, as of NFS, needs a new folder for
  /// each save; `save_sharded` throws there if the folder exists.
  ///
  /// Collective: returns when the folder is on the disk.
  /// @param folder  does not exist, or is one of `save_sharded`. Its parent
  ///   exists.
  /// @throws c10::Error on every rank, with the reason of the first rank that
  ///   failed; also if the Checkpoint has an optimizer without the model of its
  ///   parameters, or the folder has other files.
  void save_sharded(const std::string& folder) const;

  /// Reads the file on every rank and restores all entries, the rank's random
  /// generators, `epoch()` and `step()`. The file must have all entries of the
  /// Checkpoint except disabled scalers, and may have more; the model
  /// may also be called "state_dict" or "model_state_dict". A bare state dict
  /// loads as the entry "model"; a Checkpoint with other entries refuses it.
  /// Without an epoch or a step in the file, `epoch()` or `step()` stays as it
  /// is. The random states keep their values if the file has none that `save`
  /// wrote, or has them for another number of ranks; so does a GPU without a
  /// state in the file.
  ///
  /// The file may also be a folder of `save_sharded`, of any number of ranks,
  /// or of Python's HuggingFaceStorageWriter: each rank then reads its own part
  /// of a sharded model and of its optimizer's state. An optimizer needs its
  /// model in the Checkpoint, as in `save_sharded`. Python's folder has tensors
  /// alone. A model may have its prefix there ("model.fc1.weight"), and an
  /// optimizer keeps its options. The bytes of the tensors have no check sums.
  ///
  /// Collective: all ranks load the same content, or no rank changes anything.
  /// During the call other programs may replace or remove the file, but must
  /// not change its bytes in place.
  /// @throws c10::Error on every rank if any rank finds the file missing,
  ///   truncated, damaged or an entry that does not fit (the error names it),
  ///   or if ranks see different files. Nothing is changed then. If a rank
  ///   runs out of memory after that, all ranks throw, too, and the training is
  ///   undefined until another load.
  void load(const std::string& path);

 private:
  friend class CheckpointFolder;

  /// Content of a file that fits all entries.
  struct Loaded {
    std::vector<std::pair<Stateful*, c10::IValue>> states;
    std::optional<int64_t> epoch;
    std::optional<int64_t> step;
  };

  Checkpoint& add_entry(detail::CheckpointEntry entry);
  Checkpoint& add_optimizer(std::string name,
                            torch::optim::Optimizer& optimizer);
  std::vector<const torch::nn::Module*> modules() const;

  /// Returns the value to write on rank 0. Collective.
  c10::IValue collect(const std::string& path,
                      const detail::Communicator& ranks) const;
  /// Calls `write` on rank 0, while the other ranks take part in the reads of
  /// the value's DeferredTensors. Collective.
  static void write_on_first(const std::string& path,
                             const c10::IValue& value,
                             const detail::Communicator& ranks,
                             const std::function<void()>& write);
  /// Reads the file on every rank. Collective. Returns the reason if it is not
  /// the same valid file on all ranks, otherwise "".
  std::string read(const std::string& path,
                   const detail::Communicator& ranks,
                   detail::TorchFile& file) const;
  /// Finds the state of each entry and checks it.
  Loaded check(const c10::IValue& file,
               Stateful& rng,
               const detail::Communicator& ranks) const;
  /// Checks the file on all ranks, then continues from it. Collective.
  void load(const std::string& path,
            const detail::TorchFile& file,
            const detail::Communicator& ranks);

  std::vector<detail::CheckpointEntry> entries_;
  int64_t epoch_ = 0;
  int64_t step_ = 0;
  c10::intrusive_ptr<c10d::Backend> group_;
};

}  // namespace ddp
