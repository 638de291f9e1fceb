#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace samples {

/// Counts the memory of tensors by owner, a number that the caller assigns to a
/// device or to a part of a program. An allocation that a thread makes within a
/// `Scope` belongs to the scope's owner until it is freed in any scope of this
/// meter; a free outside of all scopes is not detected. Sizes are the sizes
/// that LibTorch's allocators report: on the CPU the requested bytes, on a GPU
/// the allocated block.
///
/// Thread contract: scopes may exist on several threads at the same time.
/// LibTorch propagates a scope to the threads that work for its thread. The
/// innermost scope applies.
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

  /// Starts to count from zero. Before this call scopes have no cost.
  void start();
  void stop();
  bool is_counting() const;

  /// Returns the bytes of each owner that are not freed yet.
  std::vector<int64_t> live() const;
  /// Returns the peak of each owner since `start` or `reset_peak`.
  std::vector<int64_t> peak() const;
  void reset_peak();

  /// Moves the memory of `tensor` to `owner`, if the memory was allocated in a
  /// scope.
  void move(const torch::Tensor& tensor, size_t owner);

 private:
  class Ledger;
  class Reporter;

  std::shared_ptr<Ledger> ledger_;
  std::vector<std::shared_ptr<c10::DebugInfoBase>> reporters_;  // by owner
};

/// Assigns the allocations of its thread to `owner` during its lifetime. Within
/// a scope no memory may be freed that was allocated before `start`, because
/// LibTorch would log a warning.
class MemoryMeter::Scope {
 public:
  Scope(const MemoryMeter& meter, size_t owner);

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace samples
