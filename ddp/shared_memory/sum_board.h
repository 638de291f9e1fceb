#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

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

inline bool has_reached(const RankCounter& counter, SumNumber number) {
  return has_reached(counter.value.load(std::memory_order_acquire), number);
}

/// The tensor that one rank brings to a sum.
struct SumPlace {
  uint64_t offset = 0;  ///< in the rank's arena
  int64_t numel = 0;
  int32_t dtype = 0;      ///< c10::ScalarType
  int32_t is_shared = 0;  ///< 0: the tensor is not in the arena
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
  /// Last sum of which the rank has summed its slice.
  RankCounter& summed(int rank) const { return ranks_[rank].summed; }
  /// Last sum of which the rank has copied the slices of the others.
  RankCounter& taken(int rank) const { return ranks_[rank].taken; }
  SumPlace& place(int rank, SumNumber number) const {
    return ranks_[rank].places[number % kPlaces];
  }

  /// Notes that the rank makes no more steps. Its tensors of the sums from
  /// `first` on may change at any time.
  void stop(int rank, SumNumber first) const {
    ranks_[rank].stopped.store(kStopped | first);
  }
  /// Returns the number `first` of a rank that has stopped.
  std::optional<SumNumber> stopped(int rank) const {
    const uint64_t value = ranks_[rank].stopped.load();
    return value == 0 ? std::nullopt
                      : std::optional(static_cast<SumNumber>(value));
  }

 private:
  static constexpr uint64_t kStopped = uint64_t{1} << 32;

  struct Rank {
    RankCounter started;
    RankCounter summed;
    RankCounter taken;
    std::atomic<uint64_t> stopped;
    SumPlace places[kPlaces];
  };

  Rank* ranks_;
};

}  // namespace ddp::detail
