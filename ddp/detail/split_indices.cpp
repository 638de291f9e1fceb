#include "ddp/detail/split_indices.h"

#include <algorithm>
#include <numeric>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

namespace ddp::detail {
namespace {

std::vector<size_t> order(const Split& split, int64_t epoch) {
  std::vector<size_t> indices(split.dataset_size);
  if (!split.shuffle) {
    std::iota(indices.begin(), indices.end(), size_t{0});
    return indices;
  }
  // Wraps like Python's manual_seed takes negative seeds.
  const auto generator =
      at::detail::createCPUGenerator(split.seed + static_cast<uint64_t>(epoch));
  const auto permutation =
      at::randperm(static_cast<int64_t>(split.dataset_size),
                   generator,
                   at::TensorOptions().dtype(at::kLong));
  const auto* first = permutation.const_data_ptr<int64_t>();
  std::copy(first, first + permutation.numel(), indices.begin());
  return indices;
}

}  // namespace

size_t split_size(const Split& split) {
  const size_t even = split.dataset_size / split.num_replicas;
  const size_t rest = split.dataset_size % split.num_replicas;
  switch (split.tail) {
    case Split::Tail::drop:
      return even;
    case Split::Tail::uneven:
      return even + (split.rank < rest ? 1 : 0);
    case Split::Tail::pad:
      break;
  }
  return even + (rest > 0 ? 1 : 0);
}

std::vector<size_t> split_indices(const Split& split, int64_t epoch) {
  const auto all = order(split, epoch);
  std::vector<size_t> mine(split_size(split));
  for (size_t i = 0; i < mine.size(); ++i) {
    mine[i] = all[(split.rank + i * split.num_replicas) % all.size()];
  }
  return mine;
}

}  // namespace ddp::detail
