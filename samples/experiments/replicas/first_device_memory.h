#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "samples/experiments/replicas/memory_meter.h"

namespace samples {

/// The most memory that tensors on the first device of a dp::DataParallel take.
///
/// On a GPU it is what LibTorch's caching allocator says of that device. On the
/// CPU all replicas share one memory; counted is what the thread of this object
/// and the replicas that it calls take, but for those in a scope of another
/// replica. The backward pass of replicas on the CPU runs in the caller's
/// thread for all of them, so that there only the forward pass can be told
/// apart.
///
/// Lives in one thread, around all that it is to see: memory that was taken
/// before must not be given back while it lives.
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

  /// Counts from here: what is held now is not in `peak`.
  void reset();
  /// Bytes, the most since `reset`.
  int64_t peak() const;
  /// Whether the backward pass can be seen, too.
  bool sees_backward() const { return !first_.is_cpu(); }

  /// For a replica's forward: while it lives, CPU memory that this thread takes
  /// is the first device's or, in a replica that is not the first, another's.
  MemoryMeter::Scope scope(bool is_first) const;

 private:
  c10::Device first_;
  int64_t start_ = 0;
  MemoryMeter meter_;  // counts on the CPU only
  std::optional<MemoryMeter::Scope> caller_;
};

}  // namespace samples
