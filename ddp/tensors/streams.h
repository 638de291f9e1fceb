#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ddp::detail {

/// Returns the current stream of `device`.
inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Makes the current stream of the device wait for all work that is queued on
/// `other` now. For buckets that are filled on several streams.
inline void join_stream(c10::Stream other) {
  const auto current = current_stream(other.device());
  if (current != other) {
    c10::Event so_far(other.device_type());
    so_far.record(other);
    so_far.block(current);
  }
}

/// Orders the streams that use some memory one after the other.
class StreamSequence {
 public:
  /// The current stream of `device` is the first one.
  explicit StreamSequence(c10::Device device) : last_(current_stream(device)) {}

  /// Makes the current stream wait for the one of the last call, and become it.
  void join() {
    join_stream(last_);
    last_ = current_stream(last_.device());
  }

 private:
  c10::Stream last_;
};

/// Keeps a tensor's memory allocated until all work that is queued on the
/// current stream now has completed. For tensors that another stream may have
/// allocated: an exchange creates them in `start` and releases them in
/// `finish`.
inline void record_stream(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) {
    const c10::impl::VirtualGuardImpl guard(tensor.device().type());
    guard.recordDataPtrOnStream(tensor.storage().data_ptr(),
                                guard.getStream(tensor.device()));
  }
}

}  // namespace ddp::detail
