#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// In its scope, tensors of at least 1 MiB that this thread makes on the CPU
/// get addresses without memory of their own: all of them share 4 MiB, so their
/// values mean nothing. Used to construct a module that gets its values from
/// another rank. Tensors of other threads are not concerned.
///
/// Does nothing if the program has set an allocator of its own with a priority.
class ConstructionMemory {
 public:
  ConstructionMemory();
  ~ConstructionMemory();
  ConstructionMemory(const ConstructionMemory&) = delete;
  ConstructionMemory& operator=(const ConstructionMemory&) = delete;

  /// Returns the sizes in bytes of the tensors without memory that still exist
  /// in this process, except tensors that share a storage with one of `known`.
  static std::vector<size_t> other_sizes(const std::vector<at::Tensor>& known);

  /// Gives memory with any values to each tensor that has none.
  static void give_memory(const std::vector<at::Tensor>& tensors);
};

}  // namespace ddp::detail
