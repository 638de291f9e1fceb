#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddp::detail {

/// How a dataset is split over ranks, without anything left open.
struct Split {
  /// What becomes of the examples that do not divide evenly.
  enum class Tail {
    pad,    ///< repeat indices from the start
    drop,   ///< leave them out
    uneven  ///< the first ranks get one more
  };

  size_t dataset_size = 0;
  size_t num_replicas = 1;
  size_t rank = 0;  ///< in [0, num_replicas)
  uint64_t seed = 0;
  bool shuffle = true;
  Tail tail = Tail::pad;
};

/// Number of indices of this rank.
size_t split_size(const Split& split);

/// The indices of this rank in one epoch, each in [0, dataset_size).
std::vector<size_t> split_indices(const Split& split, int64_t epoch);

}  // namespace ddp::detail
