#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddp::detail {

/// Pure: gives tensors of these sizes to ranks, the largest first, each to the
/// rank that has least, the lower one of equals. PyTorch's
/// ZeroRedundancyOptimizer gives out a group's parameters so.
/// @param elements  what each rank has already; is added to.
/// @returns the rank of each.
std::vector<int> partition_whole(const std::vector<int64_t>& sizes,
                                 std::vector<int64_t>& elements);

/// A run of a tensor's elements, in the order in which they lie in memory, and
/// the rank that has it.
struct Run {
  size_t tensor;  ///< its place among the tensors
  int64_t first;
  int64_t numel;
  int rank;
};

/// A run begins at a multiple of this in its tensor, and ends there or with the
/// tensor. LibTorch's loops on the CPU take this many elements at a time or a
/// divisor of it, and round those that are left over otherwise: so an element
/// is not left over in a run that is not in the whole tensor.
constexpr int64_t kRunElements = 64;

/// Pure: lays tensors of these sizes end to end and cuts them into a run a
/// rank, so that all ranks have equally many elements in the end, up to
/// `kRunElements - 1` more. Each element is in one run; a tensor without
/// elements has one of none.
/// @param elements  what each rank has already; is added to.
/// @returns by tensor and place in it.
std::vector<Run> partition_evenly(const std::vector<int64_t>& sizes,
                                  std::vector<int64_t>& elements);

}  // namespace ddp::detail
