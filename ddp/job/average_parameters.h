#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Those that require a gradient.
std::vector<at::Tensor> trained_of(const std::vector<at::Tensor>& parameters);

/// Makes the tensors their means over ranks, in place: an all-reduce for each
/// dtype and device. Collective.
///
/// @param what  for errors, as "average of parameters"
void average_over_ranks(c10d::Backend& group,
                        const std::vector<at::Tensor>& tensors,
                        const std::string& what = "average of parameters");

}  // namespace ddp::detail
