#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/shared_memory/sum_board.h"

namespace ddp::detail {

/// The other hosts of a group whose ranks are on several hosts.
struct OtherHosts {
  /// Number of slices of a tensor, the same on all hosts. The first ranks of
  /// each host sum one slice each, the further ranks none.
  int slices = 0;
  /// Starts the sum of a tensor of this rank over the ranks that have the same
  /// slice, one of each host. Only ranks with a slice call it.
  std::function<c10::intrusive_ptr<c10d::Work>(const at::Tensor&)> all_reduce;
  /// Ends the all-reduces of this rank; the other ranks' all-reduces end with
  /// an error. Does not throw.
  std::function<void()> stop;
};

/// One rank's part in sums of tensors that lie in shared memory. Every rank
/// brings one tensor to each sum; afterwards each tensor holds the sum. A sum
/// passes three points:
/// 1. All ranks have started: each rank sums its own slice of all tensors, into
///    its own tensor.
/// 2. All ranks have summed: each rank copies the other slices from the ranks
///    that summed them.
/// 3. All ranks have copied: the rank may write to its tensor.
///
/// If the group has ranks on several hosts, these are the ranks of one host.
/// Before point 2 a slice is summed over the hosts, too: each rank sums its
/// slice into memory of its own, all-reduces that with the ranks of the other
/// hosts that have the same slice, and copies the result into its own tensor.
///
/// One rank sums a slice, in the order of the ranks. All ranks therefore get
/// the same bits. Neither the timing nor, on one host, the position of an
/// element changes the bits. No function waits: `advance` does the steps that
/// are possible now.
///
/// The copy of one rank's tensor passes the same points: no rank sums, and each
/// other rank copies the whole tensor.
///
/// Thread contract: one call at a time on each rank.
class SumProtocol {
 public:
  /// @param arenas  of all ranks.
  /// @param others  without all_reduce if all ranks are on this host.
  SumProtocol(SumBoard board,
              std::vector<std::byte*> arenas,
              int rank,
              OtherHosts others = {});

  /// Begins the next sum. The caller keeps the tensor and leaves its values
  /// alone until the sum is done.
  /// @pre `has_room`.
  SumNumber start(const SumPlace& place);
  /// Begins a copy of the tensor of rank `source`, which alone has to lie in
  /// the arena. Not for ranks on several hosts.
  /// @param place  of `tensor`, contiguous.
  /// @pre `has_room`.
  SumNumber start_copy(SumPlace place, int source, at::Tensor tensor);
  /// Whether another sum may start; otherwise advance until the oldest one is
  /// done.
  bool has_room() const { return is_done(started_ + 1 - SumBoard::kPlaces); }

  /// Does a step that this rank can do now; of two steps the one of the older
  /// sum, because another rank may wait for it. Returns false if the next steps
  /// wait for other ranks.
  /// @throws the exception of an all-reduce over the hosts.
  bool advance() { return take() || cross() || sum(); }
  /// Sums this rank's slice of the next sum, if all ranks have started it.
  bool sum();
  /// Takes over the next slice that has been summed over the hosts.
  bool cross();
  /// Copies the other slices of the next sum, if all ranks have summed theirs.
  bool take();
  /// The counter that the last start or step has advanced.
  RankCounter& advanced() const { return *advanced_; }

  bool is_done(SumNumber number) const;

  /// Forgets the tensors that copies would go to. No step may follow.
  void stop() { copies_.clear(); }

  /// The subject of the next wait of a sum: a counter of a rank, or an
  /// all-reduce over the hosts.
  struct Awaited {
    RankCounter* counter = nullptr;
    SumNumber number = 0;
    int rank = -1;
    c10::intrusive_ptr<c10d::Work> work = nullptr;
  };
  /// @pre not `is_done(number)`, and `advance` has returned false.
  Awaited awaited(SumNumber number) const;

  /// Why nothing was summed; all ranks find the same.
  struct Refusal {
    bool is_elsewhere = false;  ///< a tensor that others read is not shared
    std::string mismatch;       ///< tensors of different sizes or dtypes, or ""
  };
  /// Returns the refusal of a sum that is done, once; nothing is left of the
  /// sum then.
  Refusal take_refusal(SumNumber number);

 private:
  /// A slice on its way to the other hosts.
  struct Crossing {
    at::Tensor memory;  // the slice, and whether this host refuses the sum
    c10::intrusive_ptr<c10d::Work> work;  // null: nothing is sent
  };

  int ranks() const { return static_cast<int>(arenas_.size()); }
  int slices() const { return others_.all_reduce ? others_.slices : ranks(); }
  Refusal refusal_of(SumNumber number) const;
  at::Tensor tensor_of(int rank, SumNumber number) const;
  at::Tensor slice_of(int rank, int slice, SumNumber number) const;
  void sum_own_slice(SumNumber number, const at::Tensor& to);
  Crossing start_crossing(SumNumber number);
  bool is_refused(SumNumber number) const;
  void take_other_slices(SumNumber number);
  void publish(RankCounter& counter, SumNumber number);
  template <class CounterOf>
  bool have_all(const CounterOf& counter_of, SumNumber number) const;

  const SumBoard board_;
  const std::vector<std::byte*> arenas_;
  const int rank_;
  const OtherHosts others_;
  SumNumber started_ = 0;
  SumNumber summed_ = 0;   // over the ranks of this host
  SumNumber crossed_ = 0;  // over the hosts, too
  SumNumber taken_ = 0;
  std::deque<Crossing> crossings_;  // of the sums after crossed_
  bool has_mismatch_ = false;
  RankCounter* advanced_ = nullptr;
  std::map<SumNumber, Refusal> refusals_;
  std::map<SumNumber, at::Tensor> copies_;  // tensors that receive a copy
};

}  // namespace ddp::detail
