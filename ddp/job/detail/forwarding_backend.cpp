#include "ddp/job/detail/forwarding_backend.h"

#include <utility>

#include <ATen/DeviceGuard.h>

namespace ddp::detail {

ForwardingBackend::ForwardingBackend(c10::intrusive_ptr<c10d::Backend> inner)
    : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

const std::string ForwardingBackend::getBackendName() const {
  return inner().getBackendName();
}

void ForwardingBackend::setTimeout(std::chrono::milliseconds timeout) {
  inner().setTimeout(timeout);
}

void ForwardingBackend::abort() {
  inner().abort();
}

void ForwardingBackend::shutdown() {
  inner().shutdown();
}

c10::intrusive_ptr<c10d::Backend::Options>
ForwardingBackend::getBackendOptions() {
  return inner().getBackendOptions();
}

bool ForwardingBackend::supportsCoalescing() const {
  return inner().supportsCoalescing();
}

void ForwardingBackend::startCoalescing() {
  inner().startCoalescing();
}

ForwardingBackend::Work ForwardingBackend::endCoalescing() {
  return inner().endCoalescing();
}

template <class Call>
ForwardingBackend::Work ForwardingBackend::start(const Collective& collective,
                                                 const Call& call) {
  auto work = call(for_collective(collective.device));
  has_started(collective, work);
  return work;
}

ForwardingBackend::Work ForwardingBackend::broadcast(
    Tensors& tensors, const c10d::BroadcastOptions& options) {
  return start(
      {"broadcast", at::device_of(tensors), tensors},
      [&](auto& backend) { return backend.broadcast(tensors, options); });
}

ForwardingBackend::Work ForwardingBackend::allreduce(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  return start(
      {"allreduce", at::device_of(tensors), tensors},
      [&](auto& backend) { return backend.allreduce(tensors, options); });
}

ForwardingBackend::Work ForwardingBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return start({"allreduce_coalesced", at::device_of(tensors), tensors},
               [&](auto& backend) {
                 return backend.allreduce_coalesced(tensors, options);
               });
}

ForwardingBackend::Work ForwardingBackend::reduce(
    Tensors& tensors, const c10d::ReduceOptions& options) {
  return start({"reduce", at::device_of(tensors), tensors},
               [&](auto& backend) { return backend.reduce(tensors, options); });
}

ForwardingBackend::Work ForwardingBackend::allgather(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return start({"allgather", at::device_of(inputs), inputs},
               [&](auto& backend) {
                 return backend.allgather(outputs, inputs, options);
               });
}

ForwardingBackend::Work ForwardingBackend::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  return start({"allgather_base", at::device_of(input), input},
               [&](auto& backend) {
                 return backend._allgather_base(output, input, options);
               });
}

ForwardingBackend::Work ForwardingBackend::gather(
    TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  return start({"gather", at::device_of(inputs)}, [&](auto& backend) {
    return backend.gather(outputs, inputs, options);
  });
}

ForwardingBackend::Work ForwardingBackend::scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ScatterOptions& options) {
  return start({"scatter", at::device_of(outputs)}, [&](auto& backend) {
    return backend.scatter(outputs, inputs, options);
  });
}

ForwardingBackend::Work ForwardingBackend::reduce_scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ReduceScatterOptions& options) {
  return start({"reduce_scatter", at::device_of(outputs)}, [&](auto& backend) {
    return backend.reduce_scatter(outputs, inputs, options);
  });
}

ForwardingBackend::Work ForwardingBackend::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  return start({"reduce_scatter_base", at::device_of(input), input},
               [&](auto& backend) {
                 return backend._reduce_scatter_base(output, input, options);
               });
}

ForwardingBackend::Work ForwardingBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_sizes,
    std::vector<int64_t>& input_sizes,
    const c10d::AllToAllOptions& options) {
  return start({"alltoall_base", at::device_of(input)}, [&](auto& backend) {
    return backend.alltoall_base(
        output, input, output_sizes, input_sizes, options);
  });
}

ForwardingBackend::Work ForwardingBackend::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return start({"alltoall", at::device_of(inputs)}, [&](auto& backend) {
    return backend.alltoall(outputs, inputs, options);
  });
}

ForwardingBackend::Work ForwardingBackend::barrier(
    const c10d::BarrierOptions& options) {
  return start({"barrier", options.device},
               [&](auto& backend) { return backend.barrier(options); });
}

ForwardingBackend::Work ForwardingBackend::send(Tensors& tensors,
                                                int to,
                                                int tag) {
  return for_message().send(tensors, to, tag);
}

ForwardingBackend::Work ForwardingBackend::recv(Tensors& tensors,
                                                int from,
                                                int tag) {
  return for_message().recv(tensors, from, tag);
}

ForwardingBackend::Work ForwardingBackend::recvAnysource(Tensors& tensors,
                                                         int tag) {
  return for_message().recvAnysource(tensors, tag);
}

c10d::Backend& ForwardingBackend::inner() const {
  TORCH_CHECK(inner_,
              "Expected a process group, but it has been destroyed; make no "
              "collective after ddp::destroy_process_group(), nor after a "
              "backward pass of this rank has failed");
  return *inner_;
}

c10::intrusive_ptr<c10d::Backend> ForwardingBackend::release() {
  return std::move(inner_);
}

}  // namespace ddp::detail
