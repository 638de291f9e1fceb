#pragma once

#include <set>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/named_parameter.h"
#include "ddp/job/state_sync.h"

namespace ddp::detail {

/// What the ranks share of a module, by its names.
struct WrappedModule {
  std::vector<NamedParameter> parameters;
  std::vector<NamedParameter> buffers;
  std::vector<at::Tensor> ignored;  ///< parameters that they do not share
};

/// All but what is ignored. Weights of layers that were made with sparse(true)
/// are sparse.
/// @throws c10::Error for an ignored name that is of nothing.
WrappedModule look_into(torch::nn::Module& module,
                        const std::set<std::string>& ignored);

/// Checks that the ranks' modules agree, and gives them rank 0's parameters and
/// buffers if `copies`. Collective.
/// @param options  that must be equal on all ranks; compared before the
/// modules.
/// @param refusal  why this rank cannot go on; "" where it can.
/// @throws c10::Error on every rank when modules differ or a rank refuses.
void bring_together(c10d::Backend& group,
                    c10::Device device,
                    const WrappedModule& mine,
                    const std::vector<TensorSpec>& options,
                    bool copies,
                    const std::string& refusal = "");

}  // namespace ddp::detail
