#pragma once

#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "ddp/tensors/tensor_walk.h"

namespace ddp {

/// Implementation of `ScriptModule`.
class ScriptModuleImpl : public torch::nn::Module {
 public:
  /// Registers the script's parameters, buffers and submodules. The script
  /// keeps the mode in which it was saved until `train` or `eval` is called;
  /// `is_training()` of this module is true until then.
  explicit ScriptModuleImpl(torch::jit::Module script);

  /// Calls the script's `forward`. An error inside the script is a
  /// std::runtime_error of TorchScript's interpreter, in general not a
  /// c10::Error.
  c10::IValue forward(std::vector<c10::IValue> inputs,
                      const torch::jit::Kwargs& kwargs = {});
  /// Calls `forward` with arguments that convert to an IValue: tensors,
  /// numbers, ...
  template <typename... Args>
  c10::IValue forward(const Args&... inputs) {
    return forward(std::vector<c10::IValue>{c10::IValue(inputs)...});
  }

  /// Returns the TorchScript module: for its other methods, its attributes, and
  /// to save it for inference.
  const torch::jit::Module& script() const { return script_; }
  /// As above, for changes.
  torch::jit::Module& script() { return script_; }

  /// Sets the mode of this module, of the script and of its submodules.
  void train(bool on = true) override;

  /// Prints the name of the class and of the script's type.
  void pretty_print(std::ostream& stream) const override;

 private:
  torch::jit::Module script_;
};

/// Adapts a TorchScript module to a module of LibTorch, so that it can be used
/// in `DistributedDataParallel`, a `Checkpoint` or an optimizer. Its
/// parameters, buffers and submodules are the script's own tensors under the
/// script's names, as they exist at construction. A model written in Python and
/// saved by `torch.jit.script(net).save("net.pt")` can thus be trained in C++,
/// and `net` can load the checkpoint with `torch.load`. Buffers with
/// persistent=False are saved, too, because a script does not tell them apart:
/// use `load_state_dict(..., strict=False)` for these. `parameters()` lists a
/// parameter once for each of its names; that of the wrapper lists it once, so
/// give that list to an optimizer.
///
/// forward returns an IValue: use `.toTensor()` or `.toTuple()`.
/// `for_each_tensor` finds tensors at any depth in it.
///
/// This module has no `clone()`, and a `dp::DataParallel` of several devices
/// cannot gather tensors in an IValue.
///
/// Example:
/// @code
///   ddp::ScriptModule net(torch::jit::load("net.pt"));
///   net->to(ddp::local_device());
///   ddp::DistributedDataParallel model(net);
///   torch::optim::SGD optimizer(model->parameters(), 0.1);
///   auto loss = torch::nll_loss(model(data).toTensor(), target);
///   loss.backward();
///   optimizer.step();
///   net->script().save("trained.pt");
/// @endcode
class ScriptModule : public torch::nn::ModuleHolder<ScriptModuleImpl> {
 public:
  using torch::nn::ModuleHolder<ScriptModuleImpl>::ModuleHolder;
  /// The class behind this holder.
  using Impl = ScriptModuleImpl;

  /// Calls `forward`. Replaces the operator of ModuleHolder, which does not
  /// support overloads.
  template <typename... Args>
  c10::IValue operator()(Args&&... args) {
    return (*this)->forward(std::forward<Args>(args)...);
  }
};

namespace detail {

/// Returns the tensors in tuples, lists, dict values and objects, at any depth.
std::vector<at::Tensor> tensors_in(const c10::IValue& value);

template <>
struct TensorWalk<c10::IValue> {
  static constexpr bool kMayHold = true;
  static constexpr bool kShowsAll = true;
  template <typename Visit>
  static void walk(const c10::IValue& value, const Visit& visit) {
    for (const auto& tensor : tensors_in(value)) {
      visit(tensor);
    }
  }
};

}  // namespace detail

}  // namespace ddp
