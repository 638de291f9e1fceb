#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Pure: gives tensors of these sizes to ranks, the largest first, each to the
/// rank that has least, the lower one of equals. PyTorch's
/// ZeroRedundancyOptimizer gives out a group's parameters so.
/// @param elements  what each rank has already; is added to.
/// @returns the rank of each.
std::vector<int> owners_of(const std::vector<int64_t>& sizes,
                           std::vector<int64_t>& elements);

/// Parameters that go from their owner to the other ranks in one message: of
/// one dtype and device, a large one or small ones.
struct OwnedParameters {
  int owner;
  std::vector<at::Tensor> params;
};

/// Adds parameters to the messages, `owners[i]` that of `params[i]`. The same
/// messages on all ranks, if they give the same.
void add_parameters(const std::vector<at::Tensor>& params,
                    const std::vector<int>& owners,
                    std::vector<OwnedParameters>& messages);

/// Gives all ranks the owners' values, all messages at once. Collective. Does
/// not count as a modification for autograd.
void broadcast_from_owners(c10d::Backend& group,
                           const std::vector<OwnedParameters>& messages);

}  // namespace ddp::detail
