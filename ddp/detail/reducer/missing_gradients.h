#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Tells the ranks of each other's parameters without a gradient. Collective
/// on the CPU; on a GPU, where the ranks learn of a failure at different times,
/// it knows of this rank alone.
///
/// @param mine  names of this rank's, joined by commas.
/// @returns one list a rank, "" where none is known.
std::vector<std::string> exchange_missing(c10d::Backend& group,
                                          c10::Device device,
                                          const std::string& mine);

/// Pure: the error for parameters without a gradient. `lists[r]` are rank r's.
std::string missing_gradients_error(const std::vector<std::string>& lists);

/// For each parameter, whether some rank has used it. Collective.
std::vector<bool> all_reduce_used(c10d::Backend& group,
                                  c10::Device device,
                                  const std::vector<bool>& used);

}  // namespace ddp::detail
