#include "ddp/detail/forwarding_backend.h"

#include <utility>

namespace ddp::detail {

ForwardingBackend::ForwardingBackend(c10::intrusive_ptr<c10d::Backend> inner)
    : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

const std::string ForwardingBackend::getBackendName() const {
  return inner_->getBackendName();
}

void ForwardingBackend::setTimeout(std::chrono::milliseconds timeout) {
  inner_->setTimeout(timeout);
}

void ForwardingBackend::abort() {
  inner_->abort();
}

void ForwardingBackend::shutdown() {
  inner_->shutdown();
}

bool ForwardingBackend::supportsCoalescing() const {
  return inner_->supportsCoalescing();
}

void ForwardingBackend::startCoalescing() {
  inner_->startCoalescing();
}

ForwardingBackend::Work ForwardingBackend::endCoalescing() {
  return inner_->endCoalescing();
}

ForwardingBackend::Work ForwardingBackend::broadcast(
    Tensors& tensors, const c10d::BroadcastOptions& options) {
  return inner_->broadcast(tensors, options);
}

ForwardingBackend::Work ForwardingBackend::allreduce(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  return inner_->allreduce(tensors, options);
}

ForwardingBackend::Work ForwardingBackend::reduce(
    Tensors& tensors, const c10d::ReduceOptions& options) {
  return inner_->reduce(tensors, options);
}

ForwardingBackend::Work ForwardingBackend::allgather(
    TensorLists& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return inner_->allgather(outputs, inputs, options);
}

ForwardingBackend::Work ForwardingBackend::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  return inner_->_allgather_base(output, input, options);
}

ForwardingBackend::Work ForwardingBackend::gather(
    TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  return inner_->gather(outputs, inputs, options);
}

ForwardingBackend::Work ForwardingBackend::scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ScatterOptions& options) {
  return inner_->scatter(outputs, inputs, options);
}

ForwardingBackend::Work ForwardingBackend::reduce_scatter(
    Tensors& outputs,
    TensorLists& inputs,
    const c10d::ReduceScatterOptions& options) {
  return inner_->reduce_scatter(outputs, inputs, options);
}

ForwardingBackend::Work ForwardingBackend::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  return inner_->_reduce_scatter_base(output, input, options);
}

ForwardingBackend::Work ForwardingBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_sizes,
    std::vector<int64_t>& input_sizes,
    const c10d::AllToAllOptions& options) {
  return inner_->alltoall_base(
      output, input, output_sizes, input_sizes, options);
}

ForwardingBackend::Work ForwardingBackend::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return inner_->alltoall(outputs, inputs, options);
}

ForwardingBackend::Work ForwardingBackend::barrier(
    const c10d::BarrierOptions& options) {
  return inner_->barrier(options);
}

ForwardingBackend::Work ForwardingBackend::send(Tensors& tensors,
                                                int to,
                                                int tag) {
  return inner_->send(tensors, to, tag);
}

ForwardingBackend::Work ForwardingBackend::recv(Tensors& tensors,
                                                int from,
                                                int tag) {
  return inner_->recv(tensors, from, tag);
}

ForwardingBackend::Work ForwardingBackend::recvAnysource(Tensors& tensors,
                                                         int tag) {
  return inner_->recvAnysource(tensors, tag);
}

}  // namespace ddp::detail
