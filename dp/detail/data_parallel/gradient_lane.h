#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace dp::detail {

/// How tensors go from one device to another. Between GPUs on two streams of
/// its own, so that neither GPU computes later because of a copy: a copy waits
/// for what the sender has computed, and the receiver for the copy, no one else
/// for anyone. (LibTorch's copies make the current streams of both GPUs wait
/// for each other.)
class GradientLane {
 public:
  GradientLane(c10::Device from, c10::Device to);

  /// A tensor on its way.
  struct Sent {
    at::Tensor tensor;
    std::optional<c10::Event> arrival;  ///< none when it is there already
  };

  /// Copies what is ready on the sender's current stream; never returns the
  /// tensor itself.
  Sent send(const at::Tensor& tensor) const;

  /// What was sent, for the current stream of its device.
  static at::Tensor receive(const Sent& sent);

 private:
  struct Streams {
    c10::Stream from;
    c10::Stream to;
  };

  c10::Device to_;
  std::optional<Streams> streams_;  // none where one is no GPU
};

}  // namespace dp::detail
