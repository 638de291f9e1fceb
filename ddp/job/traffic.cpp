#include "ddp/job/traffic.h"

#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <memory>
#include <utility>

namespace ddp {

using Work = detail::ForwardingBackend::Work;

void CountingBackend::count(int64_t Traffic::*kind, const Tensors& tensors) {
  const std::lock_guard lock(mutex_);
  for (const auto& tensor : tensors) {
    const size_t bytes = tensor.is_sparse() ? tensor._indices().nbytes() +
                                                  tensor._values().nbytes()
                                            : tensor.nbytes();
    traffic_.*kind += static_cast<int64_t>(bytes);
  }
}

Traffic CountingBackend::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(traffic_, {});
}

Work CountingBackend::allreduce(Tensors& tensors,
                                const c10d::AllreduceOptions& options) {
  count(&Traffic::all_reduce, tensors);
  return ForwardingBackend::allreduce(tensors, options);
}

Work CountingBackend::broadcast(Tensors& tensors,
                                const c10d::BroadcastOptions& options) {
  count(&Traffic::broadcast, tensors);
  return ForwardingBackend::broadcast(tensors, options);
}

Work CountingBackend::allgather(TensorLists& outputs,
                                Tensors& inputs,
                                const c10d::AllgatherOptions& options) {
  count(&Traffic::all_gather, inputs);
  return ForwardingBackend::allgather(outputs, inputs, options);
}

Work CountingBackend::_allgather_base(at::Tensor& output,
                                      at::Tensor& input,
                                      const c10d::AllgatherOptions& options) {
  count(&Traffic::all_gather, {input});
  return ForwardingBackend::_allgather_base(output, input, options);
}

Work CountingBackend::reduce_scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ReduceScatterOptions& options) {
  for (const auto& list : inputs) {
    count(&Traffic::reduce_scatter, list);
  }
  return ForwardingBackend::reduce_scatter(outputs, inputs, options);
}

Work CountingBackend::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  count(&Traffic::reduce_scatter, {input});
  return ForwardingBackend::_reduce_scatter_base(output, input, options);
}

Work CountingBackend::alltoall_base(at::Tensor& output,
                                    at::Tensor& input,
                                    std::vector<int64_t>& output_sizes,
                                    std::vector<int64_t>& input_sizes,
                                    const c10d::AllToAllOptions& options) {
  count(&Traffic::all_to_all, {input});
  return ForwardingBackend::alltoall_base(
      output, input, output_sizes, input_sizes, options);
}

Work CountingBackend::send(Tensors& tensors, int to, int tag) {
  count(&Traffic::sent, tensors);
  return ForwardingBackend::send(tensors, to, tag);
}

int64_t tcp_bytes_sent() {
  int64_t sum = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> files(::opendir("/proc/self/fd"),
                                                  ::closedir);
  while (const dirent* entry = files ? ::readdir(files.get()) : nullptr) {
    tcp_info info{};
    socklen_t size = sizeof(info);
    // Fails for descriptors that are not TCP sockets.
    if (::getsockopt(
            std::atoi(entry->d_name), IPPROTO_TCP, TCP_INFO, &info, &size) ==
        0) {
      sum += static_cast<int64_t>(info.tcpi_bytes_sent) -
             static_cast<int64_t>(info.tcpi_bytes_retrans);
    }
  }
  return sum;
}

}  // namespace ddp
