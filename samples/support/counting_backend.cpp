#include "samples/support/counting_backend.h"

#include <utility>

namespace samples {

CountingBackend::CountingBackend(c10::intrusive_ptr<c10d::Backend> inner)
    : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

int64_t CountingBackend::take_bytes_sent() {
  return std::exchange(bytes_sent_, 0);
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
  for (const auto& tensor : tensors) {
    bytes_sent_ += static_cast<int64_t>(tensor.nbytes());
  }
  return inner_->send(tensors, to, tag);
}

CountingBackend::Work CountingBackend::recv(std::vector<at::Tensor>& tensors,
                                            int from,
                                            int tag) {
  return inner_->recv(tensors, from, tag);
}

}  // namespace samples
