#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ddp::detail {

/// Number of a sum over ranks: 1, 2, ... It wraps around, so compare by
/// `has_reached`.
using SumNumber = uint32_t;

inline bool has_reached(SumNumber counter, SumNumber number) {
  return static_cast<int32_t>(counter - number) >= 0;
}

/// A counter that one rank advances and other ranks wait for. Has a cache line
/// alone.
struct alignas(64) RankCounter {
  std::atomic<SumNumber> value;
  std::atomic<uint32_t> sleepers;  // processes in a futex wait on `value`
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

/// The tensor that one rank brings to a sum.
struct SumPlace {
  uint64_t offset = 0;  ///< in the rank's arena
  int64_t numel = 0;
  int32_t dtype = 0;      ///< c10::ScalarType
  int32_t is_shared = 0;  ///< 0: the tensor is not in the arena
  /// -1, or the rank whose tensor is copied to the others instead of a sum.
  int32_t source = -1;
  /// 1 once this rank knows that a tensor of another host cannot be summed.
  int32_t is_refused = 0;
};

/// How far each rank has come with the sums of a group, in memory that all
/// ranks map and that begins as zeros. Only a rank itself writes its part, but
/// for the counts of sleepers.
class SumBoard {
 public:
  /// Sums that may be in progress at once.
  static constexpr SumNumber kPlaces = 256;

  static size_t bytes(int ranks) {
    return static_cast<size_t>(ranks) * sizeof(Rank);
  }

  explicit SumBoard(void* memory) : ranks_(static_cast<Rank*>(memory)) {}

  /// Last sum that the rank has brought a tensor to.
  RankCounter& started(int rank) const { return ranks_[rank].started; }
  /// Last sum of which the rank has summed its slice, over all hosts.
  RankCounter& summed(int rank) const { return ranks_[rank].summed; }
  /// Last sum of which the rank has copied the slices of the others.
  RankCounter& taken(int rank) const { return ranks_[rank].taken; }
  /// How a rank has ended that makes no more steps; 0: it has not.
  enum End : uint32_t {
    /// A wait of the rank failed or its group was aborted; its tensors may
    /// change from then on.
    failed = 1,
    closed = 2,  ///< its group was closed; its tensors stay until they are read
  };
  std::atomic<uint32_t>& has_stopped(int rank) const {
    return ranks_[rank].has_stopped;
  }
  SumPlace& place(int rank, SumNumber number) const {
    return ranks_[rank].places[number % kPlaces];
  }

 private:
  struct Rank {
    RankCounter started;
    RankCounter summed;
    RankCounter taken;
    std::atomic<uint32_t> has_stopped;
    SumPlace places[kPlaces];
  };

  Rank* ranks_;
};

}  // namespace ddp::detail
