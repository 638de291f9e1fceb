#include "dp/detail/data_parallel/gradient_lane.h"

#include <ATen/ops/record_stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace dp::detail {
namespace {

c10::Stream pooled_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device);
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

at::Tensor copied_to(c10::Device device, const at::Tensor& tensor) {
  // A copy to the CPU must have happened when it is read there.
  return tensor.to(tensor.options().device(device),
                   /*non_blocking=*/!device.is_cpu(),
                   /*copy=*/true);
}

}  // namespace

GradientLane::GradientLane(c10::Device from, c10::Device to) : to_(to) {
  if (from.is_cuda() && to.is_cuda() && from != to) {
    streams_ = Streams{pooled_stream(from), pooled_stream(to)};
  }
}

GradientLane::Sent GradientLane::send(const at::Tensor& tensor) const {
  if (!streams_) {
    return {copied_to(to_, tensor), std::nullopt};
  }
  const auto& [from, to] = *streams_;
  c10::Event computed(from.device_type());
  computed.record(current_stream(from.device()));
  from.wait(computed);
  tensor.record_stream(from);
  Sent sent;
  {
    // The copy's memory is that of the stream `to`, on which nothing computes.
    const c10::MultiStreamGuard guard({from, to});
    sent.tensor = copied_to(to_, tensor);
  }
  sent.arrival.emplace(to.device_type());
  sent.arrival->record(to);
  return sent;
}

at::Tensor GradientLane::receive(const Sent& sent) {
  if (sent.arrival) {
    const auto stream = current_stream(sent.tensor.device());
    stream.wait(*sent.arrival);
    sent.tensor.record_stream(stream);
  }
  return sent.tensor;
}

}  // namespace dp::detail
