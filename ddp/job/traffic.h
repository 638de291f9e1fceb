#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/detail/forwarding_backend.h"

namespace ddp {

/// Bytes of the tensors that one rank has given to its backend. What the
/// backend sends for them is up to it: a ring all-reduce over p ranks sends
/// 2(p-1)/p of them from each.
struct Traffic {
  int64_t all_reduce = 0;
  int64_t broadcast = 0;
  int64_t all_gather = 0;      ///< this rank's part
  int64_t reduce_scatter = 0;  ///< all parts
  int64_t all_to_all = 0;      ///< all parts, this rank's own among them
  int64_t sent = 0;            ///< to one rank by `send`
};

/// Another backend, with what goes through it counted: all-reduces, broadcasts,
/// all-gathers, reduce-scatters, all-to-alls and messages; the rest is handed
/// on uncounted. A drop-in wherever a backend is asked for.
///
/// Thread contract: as that of the other backend; the counts may be taken on
/// any thread.
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

  /// What has been counted since the last call, and begins anew.
  Traffic take();

  Work allreduce(Tensors& tensors,
                 const c10d::AllreduceOptions& options) override;
  Work broadcast(Tensors& tensors,
                 const c10d::BroadcastOptions& options) override;
  Work allgather(TensorLists& outputs,
                 Tensors& inputs,
                 const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output,
                       at::Tensor& input,
                       const c10d::AllgatherOptions& options) override;
  Work reduce_scatter(Tensors& outputs,
                      TensorLists& inputs,
                      const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output,
                            at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output,
                     at::Tensor& input,
                     std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes,
                     const c10d::AllToAllOptions& options) override;
  Work send(Tensors& tensors, int to, int tag) override;

 private:
  void count(int64_t Traffic::*kind, const Tensors& tensors);

  std::mutex mutex_;
  Traffic traffic_;
};

/// Bytes that the kernel has sent from this process's open TCP connections
/// since they were made, as TCP_INFO counts them, each once: what messages
/// really cost, with everything that a library puts around them. NCCL goes
/// other ways than sockets within a host.
///
/// Needs Linux 4.19; counts nothing on an older one.
int64_t tcp_bytes_sent();

}  // namespace ddp
