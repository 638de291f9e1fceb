#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddp::detail {

/// A run of a tensor's elements, in memory order, and the rank that owns it.
struct Run {
  size_t tensor;  ///< index of the tensor
  int64_t first;
  int64_t numel;
  int rank;
};

/// A run begins at a multiple of this number in its tensor, and ends at a
/// multiple or at the tensor's end. LibTorch's CPU loops process this many
/// elements (or a divisor of it) at a time and round the remaining elements
/// differently. Because of the alignment, a remaining element of a run is also
/// a remaining element of the whole tensor, so the split does not change its
/// rounding.
constexpr int64_t kRunElements = 64;

/// Places tensors of these sizes end to end and cuts them into one run per
/// rank, so that all ranks end up with equal numbers of elements, up to
/// `kRunElements - 1` more. Each element is in exactly one run; a tensor
/// without elements has one empty run. Pure.
/// @param elements  number of elements each rank has already; increased.
/// @returns the runs, ordered by tensor and by position in it.
std::vector<Run> partition_evenly(const std::vector<int64_t>& sizes,
                                  std::vector<int64_t>& elements);

}  // namespace ddp::detail
