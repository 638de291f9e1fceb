#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddp::detail {

/// Complete description of the split of a dataset over ranks.
struct Split {
  /// Treatment of examples that do not divide evenly.
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

/// The part of an epoch that is done, as places in the epoch's order. The order
/// does not depend on the number of ranks.
struct EpochProgress {
  size_t first = 0;           ///< all places below this one are done
  std::vector<size_t> ahead;  ///< further places that are done, ascending
};

/// Returns the number of this rank's indices in the rest of an epoch.
size_t split_size(const Split& split, const EpochProgress& done = {});

/// Returns this rank's indices in the rest of an epoch, each in [0,
/// dataset_size). Rank r gets every num_replicas-th open place, starting with
/// the r-th.
std::vector<size_t> split_indices(const Split& split,
                                  int64_t epoch,
                                  const EpochProgress& done = {});

/// Returns the part that is done after each rank has done the first
/// `counts[rank]` of its `split_indices(split, epoch, before)`. Repeated
/// indices of a padded tail do not count.
EpochProgress done_after(const Split& split,
                         const EpochProgress& before,
                         const std::vector<size_t>& counts);

}  // namespace ddp::detail
