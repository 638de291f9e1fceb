#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Returns the tensors that require a gradient.
std::vector<at::Tensor> trained_of(const std::vector<at::Tensor>& parameters);

/// Replaces the tensors by their means over the ranks, in place, with one
/// all-reduce per dtype and device. Collective.
///
/// @param what  name of the operation for errors, such as "average of
///   parameters".
/// @throws c10::Error if a rank has left or the group's time-out is over.
void average_over_ranks(c10d::Backend& group,
                        const std::vector<at::Tensor>& tensors,
                        const std::string& what = "average of parameters");

}  // namespace ddp::detail
