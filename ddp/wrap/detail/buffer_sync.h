#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/reduce/buffer_hook.h"
#include "ddp/wrap/detail/module_record.h"

namespace ddp::detail {

/// Makes the buffers of a wrapped module equal on all ranks.
class BufferSync {
 public:
  /// @param modules  must outlive this object.
  /// @param hook  replaces the copy from one rank; may be empty.
  BufferSync(const ModuleRecord& modules, BufferHook hook);

  /// Lists the module's buffers again if they have been replaced. Returns true
  /// if their number, shapes or dtypes have changed since the last comparison.
  bool has_changed();

  /// Compares the buffers of all ranks. Collective.
  /// @throws c10::Error, the same on every rank, that names a buffer, the ranks
  ///   and the shapes if they differ.
  void compare(c10d::Backend& group);

  /// Calls the hook, or copies the buffers of rank `source` to all ranks.
  void sync(int source, c10d::Backend& group) const;

 private:
  struct Owner {
    const torch::nn::Module* module = nullptr;
    std::vector<at::Tensor> buffers;  ///< also ignored ones
  };

  bool is_listed() const;
  void list();

  const ModuleRecord& modules_;
  BufferHook hook_;
  std::vector<Owner> owners_;  // of all modules, in their order
  NamedBuffers buffers_;       // each once, without ignored ones
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> compared_;  // without memory
};

}  // namespace ddp::detail
