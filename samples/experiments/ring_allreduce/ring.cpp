#include "samples/experiments/ring_allreduce/ring.h"

namespace samples {
namespace {

constexpr int kTag = 0;

// The transfers of one rank in one step.
struct Exchange {
  torch::Tensor out;
  int64_t to;
  torch::Tensor in;
  int64_t from;
};

// Sends and receives concurrently. If all ranks sent first, each would block,
// waiting for a receiver. An empty chunk is not sent.
void exchange(const Exchange& step, c10d::Backend& group) {
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
}

void check(const torch::Tensor& tensor) {
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

}  // namespace

std::vector<int64_t> split_evenly(int64_t numel, int64_t parts) {
  std::vector<int64_t> sizes;
  for (int64_t part = 0; part < parts; ++part) {
    sizes.push_back(numel / parts + (part < numel % parts ? 1 : 0));
  }
  return sizes;
}

int64_t ring_elements_sent(int64_t numel, int64_t ranks, int64_t rank) {
  if (ranks == 1) {
    return 0;
  }
  const auto sizes = split_evenly(numel, ranks);
  const auto size = [&](int64_t chunk) {
    return sizes[static_cast<size_t>(chunk % ranks)];
  };
  return 2 * numel - size(rank + 1) - size(rank + 2);
}

void ring_allreduce(torch::Tensor& tensor, c10d::Backend& group) {
  check(tensor);
  const torch::NoGradGuard no_grad;
  const int64_t ranks = group.getSize();
  const int64_t rank = group.getRank();
  const int64_t right = (rank + 1) % ranks;
  const int64_t left = (rank + ranks - 1) % ranks;
  Chunks chunks(tensor, ranks);
  auto buffer = torch::empty_like(chunks[0]);  // the largest chunk

  for (int64_t step = 0; step < ranks - 1; ++step) {
    auto& mine = chunks[rank - step - 1];
    const auto received = buffer.narrow(0, 0, mine.numel());
    exchange({chunks[rank - step], right, received, left}, group);
    mine.add_(received);
  }
  for (int64_t step = 0; step < ranks - 1; ++step) {
    exchange({chunks[rank + 1 - step], right, chunks[rank - step], left},
             group);
  }
}

void naive_allreduce(torch::Tensor& tensor, c10d::Backend& group) {
  check(tensor);
  const torch::NoGradGuard no_grad;
  const int64_t ranks = group.getSize();
  const int64_t rank = group.getRank();
  const auto own = tensor.view(-1);
  auto all = torch::empty({ranks, tensor.numel()}, tensor.options());
  all[rank].copy_(own);
  for (int64_t distance = 1; distance < ranks; ++distance) {
    const int64_t to = (rank + distance) % ranks;
    const int64_t from = (rank + ranks - distance) % ranks;
    exchange({own, to, all[from], from}, group);
  }
  // Add in the order of the ranks, so that the results are bitwise equal on all
  // ranks.
  own.copy_(all[0]);
  for (int64_t peer = 1; peer < ranks; ++peer) {
    own.add_(all[peer]);
  }
}

}  // namespace samples
