#pragma once

#include <optional>
#include <vector>

#include <ATen/ThreadLocalState.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

namespace dp::detail {

/// Thread-local state of the calling thread that a replica's thread must adopt:
/// grad mode, autocast, profiler and similar, and the current stream of each
/// device.
class CarriedState {
 public:
  /// Captures the state of the calling thread.
  explicit CarriedState(const std::vector<c10::Device>& devices);

  /// Applies the state to the calling thread while the guard exists. The device
  /// at index `device` of the list becomes the current device.
  class Guard {
   public:
    Guard(const CarriedState& state, size_t device);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    at::ThreadLocalStateGuard guard_;
    bool autocast_cache_;
    c10::OptionalStreamGuard stream_;
  };

 private:
  at::ThreadLocalState state_;
  bool autocast_cache_;
  std::vector<std::optional<c10::Stream>> streams_;  // std::nullopt for the CPU
};

}  // namespace dp::detail
