#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include "ddp/job/named_parameter.h"
#include "ddp/tensors/autograd_nodes.h"

namespace ddp::detail {

/// Calls a listener each time the gradient of a parameter has been accumulated
/// into its `.grad`.
///
/// The hook is attached to the parameter's AccumulateGrad node. A parameter has
/// one hook. The object that attached or claimed it last owns the
/// parameter; listeners of other objects are not called. After the object has
/// been destroyed its hooks do nothing.
///
/// Thread contract: the listener runs on the thread that runs the backward
/// pass of the parameter's device.
class GradHooks {
 public:
  using Listener = std::function<void(size_t index)>;

  /// Attaches the hooks.
  /// @param parameters  leaves that require a gradient.
  GradHooks(std::vector<NamedParameter> parameters, Listener listener);
  GradHooks(const GradHooks&) = delete;
  GradHooks& operator=(const GradHooks&) = delete;

  /// Attaches lost hooks again. A hook is lost if autograd has made another
  /// node (`torch::load` and `to()` give a parameter other memory and drop its
  /// node), or if another object owns the parameter. Called before a forward,
  /// outside of backward passes. A graph that was recorded before the loss
  /// keeps its hook.
  /// @throws c10::Error, with the parameter's name, if its shape, strides,
  ///   dtype or device have changed since the constructor.
  void attach();

  /// Begins a backward pass of this object's parameters.
  /// @param pass  expires when the pass has ended.
  void begin_pass(std::weak_ptr<void> pass);

  /// Claims the parameters that train and that other objects own now. Returns
  /// null, or the first parameter whose owner is in a pass.
  const NamedParameter* claim();

  /// In a backward pass: the parameters that its graph does not reach, in
  /// ascending order. A nested pass may reach them.
  std::vector<size_t> unreached() const;

 private:
  struct Owner;
  struct Hook;
  struct Hooked {
    NamedParameter parameter;
    at::Tensor like;  ///< shape, strides and dtype when wrapped; no memory
    c10::Device device;
    // Autograd holds the node weakly. Without this reference it would make a
    // new one, without our hook.
    NodePtr node;
    Hook* hook = nullptr;  ///< owned by the node
  };

  bool is_lost(const Hooked& hooked) const;
  void attach(Hooked& hooked, size_t index);

  std::shared_ptr<Owner> self_;
  std::vector<Hooked> hooked_;
};

}  // namespace ddp::detail
