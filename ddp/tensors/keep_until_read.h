#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ddp::detail {

/// Keeps a tensor's memory allocated until all work that is queued on the
/// current stream now has completed. For tensors that another stream may have
/// allocated: an exchange creates them in `start` and releases them in
/// `finish`.
inline void keep_until_read(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) {
    const c10::impl::VirtualGuardImpl guard(tensor.device().type());
    guard.recordDataPtrOnStream(tensor.storage().data_ptr(),
                                guard.getStream(tensor.device()));
  }
}

}  // namespace ddp::detail
