#include "ddp/data/detail/split_indices.h"

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
  // Unsigned overflow wraps, as Python's manual_seed does for negative seeds.
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

/// Number of places that are not done.
size_t left(const Split& split, const EpochProgress& done) {
  return split.dataset_size - done.first - done.ahead.size();
}

/// Converts numbers of open places (places that are not done, counted from 0)
/// to places. The numbers must be ascending.
class OpenPlaces {
 public:
  explicit OpenPlaces(const EpochProgress& done) : done_(done) {}

  size_t next(size_t number) {
    while (skipped_ < done_.ahead.size() &&
           done_.ahead[skipped_] <= done_.first + number + skipped_) {
      ++skipped_;
    }
    return done_.first + number + skipped_;
  }

 private:
  const EpochProgress& done_;
  size_t skipped_ = 0;
};

}  // namespace

size_t split_size(const Split& split, const EpochProgress& done) {
  const size_t even = left(split, done) / split.num_replicas;
  const size_t rest = left(split, done) % split.num_replicas;
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

std::vector<size_t> split_indices(const Split& split,
                                  int64_t epoch,
                                  const EpochProgress& done) {
  const auto all = order(split, epoch);
  const size_t end = left(split, done);
  OpenPlaces places(done);
  std::vector<size_t> mine(split_size(split, done));
  for (size_t i = 0; i < mine.size(); ++i) {
    const size_t number = split.rank + i * split.num_replicas;
    mine[i] = number < end ? all[places.next(number)]
                           : all[(number - end) % all.size()];
  }
  return mine;
}

EpochProgress done_after(const Split& split,
                         const EpochProgress& before,
                         const std::vector<size_t>& counts) {
  const size_t ranks = split.num_replicas;
  const size_t end = left(split, before);
  size_t first = end;  // the smallest number that is not done
  for (size_t rank = 0; rank < ranks; ++rank) {
    first = std::min(first, rank + counts[rank] * ranks);
  }
  std::vector<size_t> numbers;  // done numbers above it
  for (size_t rank = 0; rank < ranks; ++rank) {
    const size_t share = end > rank ? (end - rank + ranks - 1) / ranks : 0;
    const size_t from = first > rank ? (first - rank + ranks - 1) / ranks : 0;
    for (size_t i = from; i < std::min(counts[rank], share); ++i) {
      numbers.push_back(rank + i * ranks);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  OpenPlaces places(before);
  EpochProgress done;
  done.first = first < end ? places.next(first) : split.dataset_size;
  for (const size_t number : numbers) {
    done.ahead.push_back(places.next(number));
  }
  for (const size_t place : before.ahead) {
    if (place > done.first) {
      done.ahead.push_back(place);
    }
  }
  std::sort(done.ahead.begin(), done.ahead.end());
  return done;
}

}  // namespace ddp::detail
