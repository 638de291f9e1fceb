#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <vector>

namespace samples {

/// Sizes of `parts` pieces of `numel` elements: equal, but the first
/// `numel % parts` have one more.
std::vector<int64_t> split_evenly(int64_t numel, int64_t parts);

/// Sums a tensor over the ranks, in place: each rank sends to its right
/// neighbour and receives from its left one.
///
/// The tensor is cut into a chunk for each of p ranks. Reduce-scatter: in p - 1
/// steps each chunk goes round, and every rank adds its own part, until rank r
/// has the whole sum of chunk r + 1. All-gather: in p - 1 steps the sums go
/// round. In each half a rank sends p - 1 of the p chunks: of n elements
/// 2(p - 1)/p * n in all, less than twice the data for any p.
///
/// @param tensor  contiguous; same shape and dtype on all ranks.
/// @param group  any backend with send and recv.
/// @throws c10::Error when the tensor is not contiguous, or a rank has left.
///
/// Collective. The result is the same on every rank, bit for bit.
///
/// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
/// clusters of workstations", JPDC 2009.
void ring_allreduce(torch::Tensor& tensor, c10d::Backend& group);

/// The same by the simplest way: each rank sends everything to every other,
/// (p - 1) * n elements.
void naive_allreduce(torch::Tensor& tensor, c10d::Backend& group);

/// Elements that `ring_allreduce` sends from one rank, exactly: 2n without the
/// chunk that this rank gets summed, and without the one that it gets last.
/// Over all ranks this adds up to 2(p - 1) * n, and where p divides n it is
/// 2(p - 1)/p * n on each.
int64_t ring_elements_sent(int64_t numel, int64_t ranks, int64_t rank);

}  // namespace samples
