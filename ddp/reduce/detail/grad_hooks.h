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
/// The hook hangs on the parameter's AccumulateGrad node. A parameter has one
/// such hook, and the object that hung or took it last owns the parameter:
/// listeners of other objects no longer hear of it. The hooks are silent when
/// this object has gone.
///
/// Thread contract: the listener runs on the thread that runs the backward
/// pass of the parameter's device.
class GradHooks {
 public:
  using Listener = std::function<void(size_t index)>;

  /// Hangs the hooks.
  /// @param parameters  leaves that require a gradient.
  GradHooks(std::vector<NamedParameter> parameters, Listener listener);
  GradHooks(const GradHooks&) = delete;
  GradHooks& operator=(const GradHooks&) = delete;

  /// Hangs every hook again that has been lost: because autograd has made
  /// another node (`torch::load` and `to()` give a parameter other memory and
  /// forget its node), or because another object owns the parameter. To be
  /// called before a forward, outside of backward passes. A graph that was
  /// recorded before the node was lost keeps its hook.
  /// @throws c10::Error when a parameter's shape, strides, dtype or device is
  ///   no longer that of the constructor, with its name.
  void hang();

  /// A backward pass has begun, in which this object's parameters are its own.
  /// @param pass  what lives until the pass has ended.
  void begin_pass(std::weak_ptr<void> pass);

  /// Takes the parameters that train and that other objects own now. Returns
  /// null, or the first one whose owner is in a pass itself.
  const NamedParameter* take();

  /// In a backward pass: parameters that its graph does not reach, in ascending
  /// order. A pass inside it may reach them.
  std::vector<size_t> unreached() const;

 private:
  struct Owner;
  struct Hook;
  struct Hooked {
    NamedParameter parameter;
    at::Tensor like;  ///< its shape, strides and dtype when wrapped; no memory
    c10::Device device;
    // Autograd holds the node weakly: without this it would be made anew
    // without our hook.
    NodePtr node;
    Hook* hook = nullptr;  ///< the node's
  };

  bool is_lost(const Hooked& hooked) const;
  void hang(Hooked& hooked, size_t index);

  std::shared_ptr<Owner> self_;
  std::vector<Hooked> hooked_;
};

}  // namespace ddp::detail
