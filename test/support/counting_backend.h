#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "test/support/forwarding_backend.h"

namespace ddp::test {

/// Bytes of the tensors that one rank has given to its backend.
struct Traffic {
  int64_t all_reduce = 0;      ///< tensors to combine
  int64_t broadcast = 0;       ///< on receiving ranks, too
  int64_t all_gather = 0;      ///< this rank's part
  int64_t reduce_scatter = 0;  ///< all parts
  int64_t all_to_all = 0;      ///< all parts, including this rank's own
  int64_t sent = 0;            ///< to single ranks, by `send`
};

/// Forwards to another backend and counts the bytes of the collectives that
/// `Traffic` names. A sparse tensor counts as its indices and values. Wrappers
/// over this group use `AllReduce` by default, also where they would sum in
/// shared memory over the inner group.
///
/// Thread contract: as for the inner backend; `take` may be called from any
/// thread.
class CountingBackend : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  /// Returns the bytes since the last call and resets the counts.
  Traffic take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(traffic_, {});
  }

  Work allreduce(Tensors& tensors,
                 const c10d::AllreduceOptions& options) override {
    count(&Traffic::all_reduce, tensors);
    return ForwardingBackend::allreduce(tensors, options);
  }
  Work broadcast(Tensors& tensors,
                 const c10d::BroadcastOptions& options) override {
    count(&Traffic::broadcast, tensors);
    return ForwardingBackend::broadcast(tensors, options);
  }
  Work allgather(TensorLists& outputs,
                 Tensors& inputs,
                 const c10d::AllgatherOptions& options) override {
    count(&Traffic::all_gather, inputs);
    return ForwardingBackend::allgather(outputs, inputs, options);
  }
  Work _allgather_base(at::Tensor& output,
                       at::Tensor& input,
                       const c10d::AllgatherOptions& options) override {
    count(&Traffic::all_gather, {input});
    return ForwardingBackend::_allgather_base(output, input, options);
  }
  Work reduce_scatter(Tensors& outputs,
                      TensorLists& inputs,
                      const c10d::ReduceScatterOptions& options) override {
    for (const auto& list : inputs) {
      count(&Traffic::reduce_scatter, list);
    }
    return ForwardingBackend::reduce_scatter(outputs, inputs, options);
  }
  Work _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override {
    count(&Traffic::reduce_scatter, {input});
    return ForwardingBackend::_reduce_scatter_base(output, input, options);
  }
  Work alltoall_base(at::Tensor& output,
                     at::Tensor& input,
                     std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes,
                     const c10d::AllToAllOptions& options) override {
    count(&Traffic::all_to_all, {input});
    return ForwardingBackend::alltoall_base(
        output, input, output_sizes, input_sizes, options);
  }
  Work send(Tensors& tensors, int to, int tag) override {
    count(&Traffic::sent, tensors);
    return ForwardingBackend::send(tensors, to, tag);
  }

 private:
  void count(int64_t Traffic::*kind, const Tensors& tensors) {
    const std::lock_guard lock(mutex_);
    for (const auto& tensor : tensors) {
      const size_t bytes = tensor.is_sparse() ? tensor._indices().nbytes() +
                                                    tensor._values().nbytes()
                                              : tensor.nbytes();
      traffic_.*kind += static_cast<int64_t>(bytes);
    }
  }

  std::mutex mutex_;
  Traffic traffic_;
};

}  // namespace ddp::test
