#include "ddp/reduce/detail/async_host_copies.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ddp::detail {

void AsyncHostCopies::enqueue(const at::Tensor& elements) {
  const auto device = elements.device();
  if (spare_.empty()) {
    spare_.push_back(
        {at::empty(elements.sizes(),
                   elements.options().device(c10::kCPU).pinned_memory(true)),
         c10::Event(device.type())});
  }
  Copy copy = std::move(spare_.back());
  spare_.pop_back();
  copy.host.copy_(elements, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl guard(device.type());
  copy.arrived.record(guard.getStream(device));
  pending_.push_back(std::move(copy));
}

std::optional<at::Tensor> AsyncHostCopies::pop_arrived() {
  if (pending_.empty() || !pending_.front().arrived.query()) {
    return std::nullopt;
  }
  spare_.push_back(std::move(pending_.front()));
  pending_.pop_front();
  return spare_.back().host;
}

void AsyncHostCopies::wait() const {
  if (!pending_.empty()) {
    pending_.back().arrived.synchronize();
  }
}

}  // namespace ddp::detail
