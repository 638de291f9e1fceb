#pragma once

#include <memory>

#include "ddp/exchanges/all_reduce.h"

namespace ddp {

namespace detail {
class SharedSums;
}

/// An `AllReduce` that sums dense gradients of CPU ranks in memory that all
/// ranks map. The default exchange of `DistributedDataParallel` over a group of
/// the job, with Gloo. The ranks have to be on one host: one kernel, one user,
/// one namespace of processes and one of the network. The group's all-reduce
/// sums all other payloads: of ranks on several hosts, on GPUs or without
/// memory that they can map, sparse payloads, and payloads in memory that is
/// not from `allocate`, for example of a `CastExchange`. It sums all payloads
/// after ProcessGroupOptions::shared_memory(false) or with the variable
/// DDP_SHARED_MEMORY=0 on any rank. Over a Gloo backend that the program has
/// made itself, a wait for a dead rank lasts until the time-out. For 3 or more
/// ranks the two sums differ in the last bits.
///
/// `.grad` lies in that memory, which a forked child does not have. The memory
/// may outlive this object. A rank sums its part of a bucket only in `start`
/// and `finish`, so a rank that does not call them holds up the others. If a
/// rank fails between `start` and `finish`, all ranks fail in this sum or the
/// next one.
///
/// Example: the wrapper's default for a `Reducer` alone.
/// @code
///   auto group = ddp::process_group();
///   ddp::Reducer reducer(
///       parameters, group,
///       ddp::DistributedDataParallelOptions().exchange(
///           std::make_shared<ddp::SharedMemoryAllReduce>(group)));
/// @endcode
class SharedMemoryAllReduce : public AllReduce {
 public:
  /// Maps the memory. Collective over the group.
  /// @throws c10::Error as `AllReduce`, or if a rank has left.
  explicit SharedMemoryAllReduce(c10::intrusive_ptr<c10d::Backend> group,
                                 const AllReduceOptions& options = {});

  /// Returns memory that the ranks share, if the ranks can map some.
  /// @throws c10::Error if the kernel gives this rank none.
  at::Tensor allocate(int64_t numel, const at::TensorOptions& options) override;
  /// Ends the waits of the other ranks for this rank.
  void abandon() noexcept override;

 protected:
  c10::intrusive_ptr<c10d::Work> start_sum(const at::Tensor& payload) override;

  /// Null if the ranks share no memory.
  const std::shared_ptr<detail::SharedSums>& sums() const { return sums_; }
  /// Starts the sum of a tensor in shared memory.
  /// @param is_scattered  as in SharedSums::start.
  c10::intrusive_ptr<c10d::Work> start_shared_sum(const at::Tensor& tensor,
                                                  bool is_scattered);

 private:
  std::shared_ptr<detail::SharedSums> sums_;  // null: no shared memory
  std::shared_ptr<const void> stop_at_end_;   // of the group
  int number_ = 0;  // of this exchange in a group of the job
};

}  // namespace ddp
