#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ddp::detail {

/// Keeps the memory of a tensor that another stream may have made until what
/// the caller's stream has been given so far has read it. For what an exchange
/// makes in `start` and lets go in `finish`.
inline void keep_until_read(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) {
    const c10::impl::VirtualGuardImpl guard(tensor.device().type());
    guard.recordDataPtrOnStream(tensor.storage().data_ptr(),
                                guard.getStream(tensor.device()));
  }
}

}  // namespace ddp::detail
