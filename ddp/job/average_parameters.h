#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::detail {

/// Returns the tensors that require a gradient.
std::vector<at::Tensor> trained_of(const std::vector<at::Tensor>& parameters);

/// Replaces the tensors by their means over the ranks, in place, with few large
/// messages per dtype and device. Needs memory for one message beside the
/// tensors. Collective. After an error only some of the tensors may be means.
///
/// @param what  name of the operation for errors, such as "average of
///   parameters".
/// @param message_bytes  maximum size of a message, approximately.
/// @throws c10::Error if a rank has left or the group's time-out is over.
void average_over_ranks(c10d::Backend& group,
                        const std::vector<at::Tensor>& tensors,
                        const std::string& what = "average of parameters",
                        int64_t message_bytes = 250 * 1024 * 1024);

}  // namespace ddp::detail
