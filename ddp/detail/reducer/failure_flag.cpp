#include "ddp/detail/reducer/failure_flag.h"

#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ddp::detail {

FailureFlag::FailureFlag(const at::Tensor& element) : element_(element) {
  if (!element.is_cpu()) {
    host_ =
        at::zeros({1}, element.options().device(c10::kCPU).pinned_memory(true));
  }
}

void FailureFlag::raise() {
  element_.fill_(1);
}

bool FailureFlag::raised() {
  if (!host_.defined()) {
    return element_.is_nonzero();
  }
  if (fetched_ && !fetched_->query()) {
    return false;
  }
  const bool result = fetched_ && host_.is_nonzero();
  fetch();
  return result;
}

void FailureFlag::clear() {
  element_.zero_();
}

void FailureFlag::fetch() {
  host_.copy_(element_, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl guard(element_.device().type());
  fetched_ = std::make_unique<c10::Event>(element_.device().type());
  fetched_->record(guard.getStream(element_.device()));
}

}  // namespace ddp::detail
