#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/detail/autograd_nodes.h"

namespace ddp::detail {

/// Calls a listener each time the gradient of a parameter has been accumulated
/// into its `.grad`. The hooks live as long as this object.
///
/// Thread contract: the listener runs on the thread that runs the backward
/// pass of the parameter's device.
class GradHooks {
 public:
  using Listener = std::function<void(size_t index)>;

  /// @param parameters  leaves that require a gradient.
  GradHooks(const std::vector<at::Tensor>& parameters, Listener listener);
  ~GradHooks();
  GradHooks(const GradHooks&) = delete;
  GradHooks& operator=(const GradHooks&) = delete;

  /// In a backward pass: parameters that its graph does not reach, in ascending
  /// order. A pass inside it may reach them.
  std::vector<size_t> unreached() const;

 private:
  struct Hooked {
    // Autograd holds the node weakly: without this it would be made anew
    // without our hook.
    NodePtr node;
    uintptr_t key;
  };
  std::shared_ptr<const Listener> listener_;
  std::vector<Hooked> hooked_;
};

}  // namespace ddp::detail
