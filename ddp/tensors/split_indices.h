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

/// What has been done of an epoch, as places in its order, which is the same
/// for any number of ranks.
struct Done {
  size_t first = 0;           ///< all places before this one
  std::vector<size_t> ahead;  ///< and these behind it, ascending
};

/// Number of indices of this rank in what is left of an epoch.
size_t split_size(const Split& split, const Done& done = {});

/// The indices of this rank in what is left of an epoch, each in
/// [0, dataset_size). Rank r takes every num_replicas-th place that is not done
/// from the r-th on.
std::vector<size_t> split_indices(const Split& split,
                                  int64_t epoch,
                                  const Done& done = {});

/// What is done when each rank has done the first `counts[rank]` of its
/// `split_indices(split, epoch, before)`. Repeats of a padded tail are no
/// places.
Done done_after(const Split& split,
                const Done& before,
                const std::vector<size_t>& counts);

}  // namespace ddp::detail
