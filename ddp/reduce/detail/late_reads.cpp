#include "ddp/reduce/detail/late_reads.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ddp::detail {

void LateReads::read(const at::Tensor& elements) {
  const auto device = elements.device();
  if (spare_.empty()) {
    spare_.push_back(
        {at::empty(elements.sizes(),
                   elements.options().device(c10::kCPU).pinned_memory(true)),
         c10::Event(device.type())});
  }
  Reading reading = std::move(spare_.back());
  spare_.pop_back();
  reading.host.copy_(elements, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl guard(device.type());
  reading.arrived.record(guard.getStream(device));
  pending_.push_back(std::move(reading));
}

std::optional<at::Tensor> LateReads::take() {
  if (pending_.empty() || !pending_.front().arrived.query()) {
    return std::nullopt;
  }
  spare_.push_back(std::move(pending_.front()));
  pending_.pop_front();
  return spare_.back().host;
}

void LateReads::wait() const {
  if (!pending_.empty()) {
    pending_.back().arrived.synchronize();
  }
}

}  // namespace ddp::detail
