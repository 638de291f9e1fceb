#pragma once

#include <string>
#include <vector>

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

namespace ddp {

/// Tensors by name, in the order of the module; as Python's state dict.
using StateDict = torch::OrderedDict<std::string, torch::Tensor>;

/// The parameters and buffers of a module under the names that Python's
/// `state_dict()` of the same module has ("fc1.weight", "bn1.running_mean").
/// The tensors share the module's memory and have no history.
///
/// A wrapper (one child named "module" and nothing of its own, such as
/// `DistributedDataParallel`) is seen through, so that its file loads in the
/// plain module and the other way round.
StateDict state_dict(const torch::nn::Module& module);

/// Options of `load_state_dict`.
struct LoadStateDictOptions {
  /// False: names that only one side has are left alone and returned, for a net
  /// that continues with another head.
  TORCH_ARG(bool, strict) = true;
};

/// Names that only one side had, in its order; none where `strict`.
struct IncompatibleKeys {
  std::vector<std::string> missing;     ///< the module's
  std::vector<std::string> unexpected;  ///< of the tensors
};

/// Copies `tensors` into the module's parameters and buffers, onto whatever
/// device they are. A floating-point tensor is converted to the dtype of the
/// module's. Names that all begin with "module.", once or more often, as
/// Python's wrappers save them, are read without it.
///
/// @throws c10::Error when a shape or dtype does not fit or, where `strict`, a
///   name is missing or not the module's; it lists all of them, and the module
///   is unchanged.
///
/// Example:
/// @code
///   const auto keys = ddp::load_state_dict(
///       *net, "pretrained.pt", ddp::LoadStateDictOptions().strict(false));
///   std::cout << keys.missing.size() << " tensors are not in the file\n";
/// @endcode
IncompatibleKeys load_state_dict(torch::nn::Module& module,
                                 const StateDict& tensors,
                                 const LoadStateDictOptions& options = {});

/// Writes the module's state dict. Python reads it by
/// `model.load_state_dict(torch.load(path))`.
///
/// The file appears in one step: a crash or a full disk at any point leaves the
/// previous file, whole. No ranks are involved; for training under ddprun see
/// `ddp::Checkpoint`.
///
/// @throws c10::Error that names the file and what failed.
///
/// Example:
/// @code
///   ddp::save_state_dict(*net, "net.pt");
///   ddp::load_state_dict(*net, "net.pt");
/// @endcode
void save_state_dict(const torch::nn::Module& module, const std::string& path);

/// Loads a state dict that `save_state_dict`, a `Checkpoint` or Python's
/// `torch.save(model.state_dict(), path)` wrote, in any format and pickle
/// protocol from 2 on. It may also be the entry "model", "state_dict" or
/// "model_state_dict" of a dict. Nothing in the file is run.
///
/// @throws c10::Error that names the file when it is cut off, damaged, not such
///   a file, holds what is no dense tensor (sparse, quantized, of a class of
///   its own), or does not fit the module, which is then unchanged.
IncompatibleKeys load_state_dict(torch::nn::Module& module,
                                 const std::string& path,
                                 const LoadStateDictOptions& options = {});

}  // namespace ddp
