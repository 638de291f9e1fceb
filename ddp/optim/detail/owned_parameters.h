#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/optim/detail/pieces.h"

namespace ddp::detail {

/// Parts of parameters that their owner sends to the other ranks in one
/// message: one large part, or several small ones of one dtype and device.
struct OwnedParameters {
  int owner;
  std::vector<at::Tensor> params;
};

/// Adds parts to the messages. Equal arguments give equal messages on all
/// ranks.
void add_pieces(const std::vector<ParameterShard>& pieces,
                std::vector<OwnedParameters>& messages);

/// Copies the owners' values to all ranks, with all messages in flight at once.
/// Collective. Does not count as a modification for autograd.
void broadcast_from_owners(c10d::Backend& group,
                           const std::vector<OwnedParameters>& messages);

}  // namespace ddp::detail
