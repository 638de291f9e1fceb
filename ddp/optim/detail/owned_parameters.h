#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/optim/detail/pieces.h"

namespace ddp::detail {

/// Pieces of parameters that go from their owner to the other ranks in one
/// message: of one dtype and device, a large one or small ones.
struct OwnedParameters {
  int owner;
  std::vector<at::Tensor> params;
};

/// Adds pieces to the messages. The same messages on all ranks, if they give
/// the same.
void add_pieces(const std::vector<ParameterShard>& pieces,
                std::vector<OwnedParameters>& messages);

/// Gives all ranks the owners' values, all messages at once. Collective. Does
/// not count as a modification for autograd.
void broadcast_from_owners(c10d::Backend& group,
                           const std::vector<OwnedParameters>& messages);

}  // namespace ddp::detail
