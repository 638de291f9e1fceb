#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ddp::detail {

/// Of that device.
inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// What the current stream of that device does next comes after what `other`
/// has to do by now. For buckets that fill on several streams.
inline void join_stream(c10::Stream other) {
  const auto current = current_stream(other.device());
  if (current != other) {
    c10::Event so_far(other.device_type());
    so_far.record(other);
    so_far.block(current);
  }
}

}  // namespace ddp::detail
