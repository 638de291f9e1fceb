#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ddp::detail {

/// Waits until a GPU has ended all work that was queued so far. Does nothing on
/// the CPU. A device without an index is the current one.
inline void wait_for_device(const c10::Device& device) {
  if (device.is_cuda()) {
    const c10::impl::VirtualGuardImpl gpu(device.type());
    gpu.synchronizeDevice(device.has_index() ? device.index()
                                             : gpu.getDevice().index());
  }
}

}  // namespace ddp::detail
