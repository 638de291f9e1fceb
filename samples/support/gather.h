#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

namespace samples {

/// Every rank's tensor, on the CPU: [world_size, ...], row r from rank r.
///
/// @param mine  numbers of the same shape and dtype on all ranks.
///
/// Collective. Example:
/// @code
///   const auto times = samples::gather(torch::tensor({forward, backward}));
/// @endcode
torch::Tensor gather(const torch::Tensor& mine);

/// Every rank's text, by rank. Collective.
std::vector<std::string> gather_text(const std::string& mine);

}  // namespace samples
