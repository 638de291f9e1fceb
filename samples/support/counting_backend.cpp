#include "samples/support/counting_backend.h"

#include <utility>

namespace samples {
namespace {

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace

CountingBackend::CountingBackend(c10::intrusive_ptr<c10d::Backend> inner)
    : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

int64_t CountingBackend::take_bytes_sent() {
  return std::exchange(bytes_sent_, 0);
}

CollectiveBytes CountingBackend::take_collective_bytes() {
  return std::exchange(collectives_, {});
}

const std::string CountingBackend::getBackendName() const {
  return inner_->getBackendName();
}

bool CountingBackend::supportsCoalescing() const {
  return inner_->supportsCoalescing();
}

void CountingBackend::startCoalescing() {
  inner_->startCoalescing();
}

CountingBackend::Work CountingBackend::endCoalescing() {
  return inner_->endCoalescing();
}

CountingBackend::Work CountingBackend::send(std::vector<at::Tensor>& tensors,
                                            int to,
                                            int tag) {
  bytes_sent_ += bytes_of(tensors);
  return inner_->send(tensors, to, tag);
}

CountingBackend::Work CountingBackend::recv(std::vector<at::Tensor>& tensors,
                                            int from,
                                            int tag) {
  return inner_->recv(tensors, from, tag);
}

CountingBackend::Work CountingBackend::allreduce(
    std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  collectives_.all_reduce += bytes_of(tensors);
  return inner_->allreduce(tensors, options);
}

CountingBackend::Work CountingBackend::broadcast(
    std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  collectives_.broadcast += bytes_of(tensors);
  return inner_->broadcast(tensors, options);
}

CountingBackend::Work CountingBackend::allgather(
    std::vector<std::vector<at::Tensor>>& outputs,
    std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& options) {
  collectives_.all_gather += bytes_of(inputs);
  return inner_->allgather(outputs, inputs, options);
}

}  // namespace samples
