#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/shared_memory/sum_board.h"

namespace ddp::detail {

/// One rank's part in sums of tensors that lie in shared memory. Every rank
/// brings one tensor to each sum; afterwards each tensor holds the sum. A sum
/// passes three points:
/// 1. All ranks have started: each rank sums its own slice of all tensors, into
///    its own tensor.
/// 2. All ranks have summed: each rank copies the other slices from the ranks
///    that summed them.
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

  /// Does one step that this rank can do now; of two steps the one of the older
  /// sum, because another rank may wait for it. Returns false if the next steps
  /// wait for other ranks.
  bool advance() { return take() || sum(); }
  void advance_all() {
    while (advance()) {
    }
  }
  /// Sums this rank's slice of the next sum, if all ranks have started it.
  /// @throws std::runtime_error, on all ranks, if their tensors differ in size
  ///   or dtype.
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
  /// @pre not `is_done(number)`, and `advance` has returned false.
  Awaited awaited(SumNumber number) const;

  /// Returns whether nothing was summed in a sum that is done, because a tensor
  /// is not in shared memory. Forgets it; all ranks find the same.
  bool take_refusal(SumNumber number) { return refused_.erase(number) > 0; }

 private:
  int ranks() const { return static_cast<int>(arenas_.size()); }
  at::Tensor slice_of(int rank, int slice, SumNumber number) const;
  bool is_refused(SumNumber number) const;
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
  std::set<SumNumber> refused_;
};

}  // namespace ddp::detail
