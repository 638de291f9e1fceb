#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// Returns the first in memory of the tensors that begin between the elements
/// of another one, such as another view of its memory or itself, or an
/// undefined tensor.
at::Tensor find_overlap(const std::vector<at::Tensor>& tensors);

/// Checks that each parameter is there once, in memory of its own, for ranks
/// that step them by parts.
void expect_no_overlap(const std::vector<at::Tensor>& parameters);

}  // namespace ddp::detail
