#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Copies each parameter from its owner, rank `owners[i]` for `params[i]`, to
/// all ranks. A large parameter is a message of its own, from and to its own
/// memory; the small ones of one owner and dtype are one message. All messages
/// are in flight at once. Does not count as a modification for autograd.
/// Collective.
/// @param params  on one device; shapes, strides and dtypes are equal on all
///   ranks.
/// @throws c10::Error if a rank has left or the group's time-out is over.
void broadcast_from_owners(c10d::Backend& group,
                           const std::vector<at::Tensor>& params,
                           const std::vector<int>& owners);

}  // namespace ddp::detail
