#pragma once

#include <torch/types.h>

namespace samples {

/// Every rank's tensor, on the CPU: [world_size, ...], row r from rank r.
///
/// @param mine  numbers of the same shape and dtype on all ranks.
///
/// Collective.
torch::Tensor gather(const torch::Tensor& mine);

}  // namespace samples
