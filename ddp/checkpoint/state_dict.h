#pragma once

#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

namespace ddp {

/// Tensors by name, in the order of the module, like Python's state dict.
using StateDict = torch::OrderedDict<std::string, torch::Tensor>;

/// Returns the parameters and buffers of a module under the names that Python's
/// `state_dict()` of the same module has ("fc1.weight", "bn1.running_mean").
/// The tensors share the module's memory and have no autograd history.
///
/// A wrapper (one child named "module" and no parameters or buffers of its own,
/// such as `DistributedDataParallel`) is skipped, so its file loads into the
/// plain module and vice versa.
StateDict state_dict(const torch::nn::Module& module);

/// Options of `load_state_dict`.
struct LoadStateDictOptions {
  /// If false, names that only one side has are ignored and returned, for
  /// example for a net with a new head. As in PyTorch, a tensor of both sides
  /// with another shape is an error all the same: for a head of the same name
  /// and another size, `erase` its tensors from the `StateDict` first.
  TORCH_ARG(bool, strict) = true;
};

/// Names that only one side has, in its order; empty if `strict`.
struct IncompatibleKeys {
  std::vector<std::string> missing;     ///< only in the module
  std::vector<std::string> unexpected;  ///< only in the tensors
};

/// Copies `tensors` into the module's parameters and buffers, on their current
/// devices. A floating-point tensor is converted to the dtype of the module's
/// tensor. If all names begin with "module." (once or several times), as
/// Python's wrappers save them, this prefix is ignored. Ranks that train the
/// module together load the same values between the same two steps.
///
/// @returns the names that only one side has.
/// @throws c10::Error if a shape or dtype does not fit, if a tensor is not
///   dense (sparse, without memory) or, if `strict`, a name is missing or
///   unknown to the module. The error lists all differences, and the module is
///   unchanged.
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

/// Writes the module's state dict to a file. Python reads it with
/// `model.load_state_dict(torch.load(path))`.
///
/// The tensors in the file are on the CPU. The folder of the file must exist.
/// The file is replaced atomically: after a crash or a full disk at any point
/// the previous file is still complete. The new content is first PATH.tmp,
/// which replaces an older file of that name. Not collective: one rank calls
/// it, since of two writers of one path one may throw. For training under
/// ddprun see `ddp::Checkpoint`.
///
/// @throws c10::Error that names the file and the failed operation.
///
/// Example:
/// @code
///   ddp::save_state_dict(*net, "net.pt");
///   ddp::load_state_dict(*net, "net.pt");
/// @endcode
void save_state_dict(const torch::nn::Module& module, const std::string& path);

/// Loads a state dict that `save_state_dict`, a `Checkpoint` or Python's
/// `torch.save(model.state_dict(), path)` of PyTorch 1.6 or later wrote, with
/// pickle protocol 2 or later. The state dict may also be the entry "model",
/// "state_dict" or "model_state_dict" of a dict. No code in the file is
/// executed.
///
/// @returns the names that only one side has.
/// @throws c10::Error that names the file if it cannot be read, is truncated,
///   damaged (values only in files with check sums, which `save_state_dict` and
///   torch.save write), of another format (the error of a file in the format
///   before PyTorch 1.6 tells how to convert it), or does not fit the module,
///   or if an entry of the state dict is no dense tensor (sparse, quantized, of
///   a user-defined class). The module is then unchanged.
IncompatibleKeys load_state_dict(torch::nn::Module& module,
                                 const std::string& path,
                                 const LoadStateDictOptions& options = {});

namespace detail {

/// Converts a state dict to the dict that is written to a file, and back.
///
/// @throws c10::Error if the value is no dict of tensors.
c10::IValue to_value(const StateDict& tensors);
StateDict to_state_dict(const c10::IValue& value);

/// Returns the state dict in the content of a file: the value itself, or its
/// entry "model", "state_dict" or "model_state_dict", recursively.
c10::IValue find_state_dict(const c10::IValue& value);

/// Throws as `load_state_dict` would, without a change.
void check_state_dict(const torch::nn::Module& module,
                      const StateDict& tensors);

}  // namespace detail
}  // namespace ddp
