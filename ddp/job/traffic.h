#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/detail/forwarding_backend.h"

namespace ddp {

/// Bytes of the tensors that one rank has given to its backend. The bytes on
/// the wire depend on the algorithm: a ring all-reduce over p ranks sends
/// 2(p-1)/p of them from each rank.
struct Traffic {
  int64_t all_reduce = 0;      ///< tensors to combine
  int64_t broadcast = 0;       ///< on receiving ranks, too
  int64_t all_gather = 0;      ///< this rank's part
  int64_t reduce_scatter = 0;  ///< all parts
  int64_t all_to_all = 0;      ///< all parts, including this rank's own
  int64_t sent = 0;            ///< to single ranks, by `send`
};

/// Forwards to another backend and counts the bytes of all-reduces, broadcasts,
/// all-gathers, reduce-scatters, all-to-alls and messages. Other collectives
/// are forwarded without counting, also `allreduce_sparse`, `alltoall` (lists
/// of tensors) and the functions with "coalesced" in their names. Can replace
/// any backend, on all ranks of a group at once. A sparse tensor counts as its
/// indices and values. Wrappers over this group use `AllReduce` by default,
/// also where they would sum in shared memory over the inner group.
/// `SyncBatchNorm` layers under a wrapper have a group of their own and are not
/// counted, unless the layer was given this one.
///
/// Thread contract: as for the inner backend; `take` may be called from any
/// thread.
///
/// Example:
/// @code
///   auto counted =
///       c10::make_intrusive<ddp::CountingBackend>(ddp::process_group());
///   ddp::DistributedDataParallel model(
///       net, ddp::DistributedDataParallelOptions().process_group(counted));
///   ...
///   std::cout << counted->take().all_reduce << " bytes all-reduced\n";
/// @endcode
class CountingBackend : public detail::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  /// Returns the bytes since the last call and resets the counts.
  Traffic take();

  /// Counts as `Traffic::all_reduce` and forwards.
  Work allreduce(Tensors& tensors,
                 const c10d::AllreduceOptions& options) override;
  /// Counts as `Traffic::broadcast` and forwards.
  Work broadcast(Tensors& tensors,
                 const c10d::BroadcastOptions& options) override;
  /// Counts as `Traffic::all_gather` and forwards.
  Work allgather(TensorLists& outputs,
                 Tensors& inputs,
                 const c10d::AllgatherOptions& options) override;
  /// Counts as `Traffic::all_gather` and forwards.
  Work _allgather_base(at::Tensor& output,
                       at::Tensor& input,
                       const c10d::AllgatherOptions& options) override;
  /// Counts as `Traffic::reduce_scatter` and forwards.
  Work reduce_scatter(Tensors& outputs,
                      TensorLists& inputs,
                      const c10d::ReduceScatterOptions& options) override;
  /// Counts as `Traffic::reduce_scatter` and forwards.
  Work _reduce_scatter_base(at::Tensor& output,
                            at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override;
  /// Counts as `Traffic::all_to_all` and forwards.
  Work alltoall_base(at::Tensor& output,
                     at::Tensor& input,
                     std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes,
                     const c10d::AllToAllOptions& options) override;
  /// Counts as `Traffic::sent` and forwards.
  Work send(Tensors& tensors, int to, int tag) override;

 private:
  void count(int64_t Traffic::*kind, const Tensors& tensors);

  std::mutex mutex_;
  Traffic traffic_;
};

/// Returns the bytes that the kernel has sent over the open TCP connections of
/// this process since they were opened, without retransmissions (TCP_INFO).
/// This is the real cost of messages, including the protocol overhead of
/// libraries. Neither shared memory nor NCCL's transports within a host and
/// over InfiniBand count.
///
/// Closed connections no longer count. May be called from any thread. Needs
/// Linux 4.19; returns 0 on an older kernel.
int64_t tcp_bytes_sent();

}  // namespace ddp
