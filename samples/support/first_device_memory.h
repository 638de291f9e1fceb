#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "samples/support/memory_meter.h"

namespace samples {

/// Measures the peak memory of tensors on the first device of a
/// dp::DataParallel.
///
/// On a GPU the value comes from LibTorch's caching allocator for that device.
/// On the CPU all replicas share one memory. There, allocations by the thread
/// of this object and by the replicas that it calls are counted, except in the
/// scope of another replica. The backward pass of CPU replicas runs in the
/// caller's thread for all of them, so only the forward pass can be attributed
/// to a replica.
///
/// Construct and destroy in one thread, around all measured code: memory that
/// was allocated before must not be freed during its lifetime.
///
/// Example:
/// @code
///   samples::FirstDeviceMemory memory(device);
///   memory.reset();
///   model->forward(images);
///   memory.peak();
/// @endcode
class FirstDeviceMemory {
 public:
  explicit FirstDeviceMemory(c10::Device first);

  /// Restarts the count; memory held now is not part of `peak`.
  void reset();
  /// Returns the peak in bytes since `reset`.
  int64_t peak() const;
  /// Returns true if the measurement includes the backward pass.
  bool sees_backward() const { return !first_.is_cpu(); }

  /// Returns a scope for a replica's forward. CPU memory that this thread
  /// allocates in the scope is attributed to the first device if `is_first`,
  /// otherwise to another.
  MemoryMeter::Scope scope(bool is_first) const;

 private:
  c10::Device first_;
  int64_t start_ = 0;
  MemoryMeter meter_;  // used on the CPU only
  std::optional<MemoryMeter::Scope> caller_;
};

}  // namespace samples
