#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace samples {

/// Counts the memory of tensors by owner: a number of yours for a device, a
/// part of a program. What a thread allocates while a `Scope` lives belongs to
/// the scope's owner until it is freed in any scope of this meter; what is
/// freed outside of them is not seen. Sizes are those that LibTorch's
/// allocators report: on the CPU the bytes asked for, on a GPU its block's.
///
/// Thread contract: scopes may live on several threads at once. LibTorch
/// carries a scope to the threads that work for it; an inner scope is closer.
///
/// Example:
/// @code
///   samples::MemoryMeter meter(2);
///   meter.start();
///   {
///     const samples::MemoryMeter::Scope scope(meter, 1);
///     output = net->forward(images);
///   }
///   meter.stop();
///   meter.live();  // {0, activations and output}
/// @endcode
class MemoryMeter {
 public:
  class Scope;

  explicit MemoryMeter(size_t owners);

  /// Counts from here on, beginning with nothing. Until then a scope costs
  /// nothing.
  void start();
  void stop();
  bool is_counting() const;

  /// Bytes of each owner that are not freed yet.
  std::vector<int64_t> live() const;
  /// The most that each owner had at one time since `start` or `reset_peak`.
  std::vector<int64_t> peak() const;
  void reset_peak();

  /// From now on the memory of `tensor` is that of `owner`, if it was allocated
  /// in a scope.
  void move(const torch::Tensor& tensor, size_t owner);

 private:
  class Ledger;
  class Reporter;

  std::shared_ptr<Ledger> ledger_;
  std::vector<std::shared_ptr<c10::DebugInfoBase>> reporters_;  // by owner
};

/// While it lives, what its thread allocates belongs to `owner`. In it no
/// memory may be freed that was allocated before `start`: LibTorch would warn.
class MemoryMeter::Scope {
 public:
  Scope(const MemoryMeter& meter, size_t owner);

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace samples
