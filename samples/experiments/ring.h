#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <vector>

namespace samples {

/// Returns the sizes of `parts` pieces of `numel` elements. The first `numel %
/// parts` pieces have one element more than the others.
inline std::vector<int64_t> split_evenly(int64_t numel, int64_t parts) {
  std::vector<int64_t> sizes;
  for (int64_t part = 0; part < parts; ++part) {
    sizes.push_back(numel / parts + (part < numel % parts ? 1 : 0));
  }
  return sizes;
}

namespace ring {

inline constexpr int kTag = 0;

// The transfers of one rank in one step.
struct Exchange {
  torch::Tensor out;
  int64_t to;
  torch::Tensor in;
  int64_t from;
};

// Sends and receives concurrently. If all ranks sent first, each would block,
// waiting for a receiver. An empty chunk is not sent. Returns the bytes sent.
inline int64_t exchange(const Exchange& step, c10d::Backend& group) {
  const bool is_grouped = group.supportsCoalescing();  // NCCL's group call
  std::vector<torch::Tensor> out{step.out}, in{step.in};
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  if (is_grouped) {
    group.startCoalescing();
  }
  if (step.out.numel() > 0) {
    works.push_back(group.send(out, static_cast<int>(step.to), kTag));
  }
  if (step.in.numel() > 0) {
    works.push_back(group.recv(in, static_cast<int>(step.from), kTag));
  }
  if (is_grouped) {
    works = {group.endCoalescing()};
  }
  for (const auto& work : works) {
    if (work) {  // NCCL returns null for an empty group
      work->wait();
    }
  }
  return static_cast<int64_t>(step.out.nbytes());
}

inline void check_contiguous(const torch::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(),
              "Expected a contiguous tensor to reduce, but got strides ",
              tensor.strides(),
              ". Call contiguous() first.");
}

// The chunks of a tensor, as views. Chunk numbers wrap around modulo the number
// of chunks.
class Chunks {
 public:
  Chunks(const torch::Tensor& tensor, int64_t count)
      : chunks_(tensor.view(-1).split_with_sizes(
            split_evenly(tensor.numel(), count))) {}

  torch::Tensor& operator[](int64_t number) {
    const auto count = static_cast<int64_t>(chunks_.size());
    return chunks_[static_cast<size_t>((number % count + count) % count)];
  }

 private:
  std::vector<torch::Tensor> chunks_;
};

}  // namespace ring

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
/// @returns the bytes that this rank has sent.
/// @throws c10::Error if the tensor is not contiguous, or if a rank has left.
///
/// Collective. The result is bitwise equal on all ranks.
///
/// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
/// clusters of workstations", JPDC 2009.
inline int64_t ring_allreduce(torch::Tensor& tensor, c10d::Backend& group) {
  ring::check_contiguous(tensor);
  const torch::NoGradGuard no_grad;
  const int64_t ranks = group.getSize();
  const int64_t rank = group.getRank();
  const int64_t right = (rank + 1) % ranks;
  const int64_t left = (rank + ranks - 1) % ranks;
  ring::Chunks chunks(tensor, ranks);
  auto buffer = torch::empty_like(chunks[0]);  // the largest chunk
  int64_t sent = 0;

  for (int64_t step = 0; step < ranks - 1; ++step) {
    auto& mine = chunks[rank - step - 1];
    const auto received = buffer.narrow(0, 0, mine.numel());
    sent += ring::exchange({chunks[rank - step], right, received, left}, group);
    mine.add_(received);
  }
  for (int64_t step = 0; step < ranks - 1; ++step) {
    sent += ring::exchange(
        {chunks[rank + 1 - step], right, chunks[rank - step], left}, group);
  }
  return sent;
}

/// Sums a tensor in the simplest way: each rank sends all elements to every
/// other rank, (p - 1) * n elements.
/// @returns the bytes that this rank has sent.
inline int64_t naive_allreduce(torch::Tensor& tensor, c10d::Backend& group) {
  ring::check_contiguous(tensor);
  const torch::NoGradGuard no_grad;
  const int64_t ranks = group.getSize();
  const int64_t rank = group.getRank();
  const auto own = tensor.view(-1);
  auto all = torch::empty({ranks, tensor.numel()}, tensor.options());
  all[rank].copy_(own);
  int64_t sent = 0;
  for (int64_t distance = 1; distance < ranks; ++distance) {
    const int64_t to = (rank + distance) % ranks;
    const int64_t from = (rank + ranks - distance) % ranks;
    sent += ring::exchange({own, to, all[from], from}, group);
  }
  // Add in the order of the ranks, so that the results are bitwise equal on all
  // ranks.
  own.copy_(all[0]);
  for (int64_t peer = 1; peer < ranks; ++peer) {
    own.add_(all[peer]);
  }
  return sent;
}

/// Returns the exact number of elements that `ring_allreduce` sends from one
/// rank: 2n minus the chunk that this rank sums last, and minus the chunk that
/// it receives last. The sum over all ranks is 2(p - 1) * n. If p divides n,
/// each rank sends 2(p - 1)/p * n.
inline int64_t ring_elements_sent(int64_t numel, int64_t ranks, int64_t rank) {
  if (ranks == 1) {
    return 0;
  }
  const auto sizes = split_evenly(numel, ranks);
  const auto size = [&](int64_t chunk) {
    return sizes[static_cast<size_t>(chunk % ranks)];
  };
  return 2 * numel - size(rank + 1) - size(rank + 2);
}

}  // namespace samples
