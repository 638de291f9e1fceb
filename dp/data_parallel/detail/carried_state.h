#pragma once

#include <optional>
#include <vector>

#include <ATen/ThreadLocalState.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

namespace dp::detail {

/// What the calling thread has set and a replica's thread must have, too: grad
/// mode, autocast, profiler and the like, and its current stream of each
/// device.
class CarriedState {
 public:
  /// Of the calling thread.
  explicit CarriedState(const std::vector<c10::Device>& devices);

  /// Sets it in the calling thread while it lives, with the device of that
  /// place in the list as the current one.
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
  std::vector<std::optional<c10::Stream>> streams_;  // none for the CPU
};

}  // namespace dp::detail
