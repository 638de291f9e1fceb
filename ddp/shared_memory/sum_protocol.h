#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

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

/// Waits until the counter has reached `number`, at most 50 ms. With `spins`,
/// first polls for about the time that it takes to wake a thread. Returns
/// whether the number was reached; may return false early.
bool wait_for_counter(RankCounter& counter, SumNumber number, bool spins);

/// Wakes the waiting ranks, in all processes.
void wake_sleepers(RankCounter& counter);

/// Sets the counter and wakes the ranks that wait for it.
void advance_counter(RankCounter& counter, SumNumber number);

/// The tensor that one rank brings to a sum.
struct SumPlace {
  uint64_t offset = 0;  ///< in the rank's arena
  int64_t numel = 0;
  int32_t dtype = 0;  ///< c10::ScalarType
  /// 1: the rank needs the sum of its own slice alone. This wide, so that no
  /// byte is unset.
  int32_t is_scattered = 0;
  uint64_t collective = 0;  ///< number of the sum in a group of the job
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

/// One rank's part in sums of tensors that lie in shared memory. Every rank
/// brings one tensor to each sum; afterwards each tensor holds the sum. A sum
/// passes three points:
/// 1. All ranks have started: each rank sums its own slice of all tensors, into
///    its own tensor.
/// 2. All ranks have summed: each rank copies the other slices from the ranks
///    that summed them, unless its place is scattered.
/// 3. All ranks have copied: the rank may write to its tensor.
///
/// One rank sums a slice, in the order of the ranks. All ranks therefore get
/// the same bits, and neither the timing nor the position of an element changes
/// them. No function waits: `advance` does the steps that are possible now.
///
/// Thread contract: one call at a time on each rank.
class SumProtocol {
 public:
  /// @param arenas  of all ranks.
  SumProtocol(SumBoard board, std::vector<std::byte*> arenas, int rank);

  /// Begins the next sum. The caller keeps the tensor and leaves its values
  /// alone until the sum is done.
  /// @pre `has_room`.
  SumNumber start(const SumPlace& place);
  /// Whether another sum may start: not too many are in progress.
  bool has_room() const { return is_done(started_ + 1 - SumBoard::kPlaces); }
  /// Number of the last sum that this rank has started.
  SumNumber started() const { return started_; }

  /// Does one step that this rank can do now; of two steps the one of the older
  /// sum, because another rank may wait for it. Returns false if the next steps
  /// wait for other ranks.
  bool advance() { return take() || sum(); }
  /// Sums this rank's slice of the next sum, if all ranks have started it.
  /// @throws std::runtime_error, on all ranks, if their tensors differ in size
  ///   or dtype, or the sum is not the same collective of the group.
  bool sum();
  /// Copies the other slices of the next sum, if all ranks have summed theirs.
  bool take();

  bool is_done(SumNumber number) const;

  /// The subject of the next wait of a sum: a counter of a rank.
  struct Awaited {
    RankCounter* counter;
    SumNumber number;
    int rank;
  };
  /// @param number  of a sum that has started, or that waits for room.
  /// @pre not `is_done(number)`, and `advance` has returned false.
  Awaited awaited(SumNumber number) const;

 private:
  int ranks() const { return static_cast<int>(arenas_.size()); }
  at::Tensor slice_of(int rank, int slice, SumNumber number) const;
  void check_alike(SumNumber number) const;
  void sum_own_slice(SumNumber number);
  void take_other_slices(SumNumber number);
  using CounterOf = RankCounter& (SumBoard::*)(int rank) const;
  Awaited first_without(CounterOf counter_of, SumNumber number) const;

  const SumBoard board_;
  const std::vector<std::byte*> arenas_;
  const int rank_;
  SumNumber started_ = 0;
  SumNumber summed_ = 0;
  SumNumber taken_ = 0;
};

}  // namespace ddp::detail
