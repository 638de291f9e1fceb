#pragma once

#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "ddp/tensors/tensor_walk.h"

namespace ddp {

/// The module behind `ScriptModule`; see there.
class ScriptModuleImpl : public torch::nn::Module {
 public:
  explicit ScriptModuleImpl(torch::jit::Module script);

  /// The script's own `forward`.
  c10::IValue forward(std::vector<c10::IValue> inputs,
                      const torch::jit::Kwargs& kwargs = {});
  /// The same of arguments that can be an IValue: tensors, numbers, ...
  template <typename... Args>
  c10::IValue forward(const Args&... inputs) {
    return forward(std::vector<c10::IValue>{c10::IValue(inputs)...});
  }

  /// The module itself: for its other methods, its attributes, and to save it
  /// for a program that only infers.
  const torch::jit::Module& script() const { return script_; }
  torch::jit::Module& script() { return script_; }

  /// Also the script's and its submodules'.
  void train(bool on = true) override;

  void pretty_print(std::ostream& stream) const override;

 private:
  torch::jit::Module script_;
};

/// A TorchScript module as a module of LibTorch, so that it goes wherever one
/// does: into `DistributedDataParallel`, a `Checkpoint`, an optimizer. Its
/// parameters, buffers and submodules are the script's own tensors under the
/// script's names, those that it has when it is given here; a model written in
/// Python, `torch.jit.script(net).save("net.pt")`, is then trained in C++, and
/// `torch.load` of a checkpoint fits `net` again.
///
/// What forward returns is an IValue: `.toTensor()`, `.toTuple()`. Tensors are
/// found in it wherever they lie, as for `for_each_tensor`.
///
/// The wrapper's `mixed_precision` with a param_dtype is refused: what the
/// script's compiler differentiates by itself reads parameters as they are. It
/// has an autocast of its own.
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
  using Impl = ScriptModuleImpl;

  /// The same as `forward`; that of the holder knows no overloads.
  template <typename... Args>
  c10::IValue operator()(Args&&... args) {
    return (*this)->forward(std::forward<Args>(args)...);
  }
};

namespace detail {

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
