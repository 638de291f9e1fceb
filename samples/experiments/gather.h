#pragma once

#include <torch/types.h>

namespace samples {

/// Gathers one tensor per rank. Returns [world_size, ...] on the CPU, with the
/// tensor of rank r in row r.
///
/// @param mine  this rank's tensor; same shape and dtype on all ranks.
///
/// Collective.
torch::Tensor gather(const torch::Tensor& mine);

}  // namespace samples
