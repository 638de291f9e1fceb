#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ScopeExit.h>
#include <torch/optim/optimizer.h>

namespace ddp::detail {

/// The parameters of each group of an optimizer.
using GroupParameters = std::vector<std::vector<at::Tensor>>;

/// Calls `work` while the optimizer's groups hold only these parameters, so
/// that its step updates no others. LibTorch's optimizers find the state by the
/// parameter and the options by the group.
template <class Work>
void with_parameters(torch::optim::Optimizer& optimizer,
                     GroupParameters& parameters,
                     const Work& work) {
  const auto swap = [&] {
    for (size_t g = 0; g < parameters.size(); ++g) {
      optimizer.param_groups()[g].params().swap(parameters[g]);
    }
  };
  swap();
  const auto guard = c10::make_scope_exit(swap);
  work();
}

}  // namespace ddp::detail
