#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <vector>

namespace samples {

/// Returns the sizes of `parts` pieces of `numel` elements. The first `numel %
/// parts` pieces have one element more than the others.
std::vector<int64_t> split_evenly(int64_t numel, int64_t parts);

/// Sums a tensor over the ranks, in place: each rank sends to its right
/// neighbour and receives from its left one.
///
/// The tensor is split into p chunks, one for each rank. Reduce-scatter: in p -
/// 1 steps each chunk travels around the ring, and every rank adds its own
/// part, until rank r has the complete sum of chunk r + 1. All-gather: in p - 1
/// steps the sums travel around the ring. In each half a rank sends p - 1 of
/// the p chunks. In total each rank sends 2(p - 1)/p * n elements of n, less
/// than twice the data for any p.
///
/// @param tensor  contiguous; same shape and dtype on all ranks.
/// @param group  any backend with send and recv.
/// @throws c10::Error if the tensor is not contiguous, or if a rank has left.
///
/// Collective. The result is bitwise equal on all ranks.
///
/// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
/// clusters of workstations", JPDC 2009.
void ring_allreduce(torch::Tensor& tensor, c10d::Backend& group);

/// Sums a tensor in the simplest way: each rank sends all elements to every
/// other rank, (p - 1) * n elements.
void naive_allreduce(torch::Tensor& tensor, c10d::Backend& group);

/// Returns the exact number of elements that `ring_allreduce` sends from one
/// rank: 2n minus the chunk whose sum this rank computes, and minus the chunk
/// that it receives last. The sum over all ranks is 2(p - 1) * n. If p divides
/// n, each rank sends 2(p - 1)/p * n.
int64_t ring_elements_sent(int64_t numel, int64_t ranks, int64_t rank);

}  // namespace samples
