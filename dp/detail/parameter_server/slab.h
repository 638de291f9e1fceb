#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace dp::detail {

/// Tensors of any dtypes in one block of CPU memory, so that one message
/// carries them all.
class Slab {
 public:
  /// Zeros of the shapes and dtypes of `like`, contiguous.
  explicit Slab(const std::vector<at::Tensor>& like);

  /// The block: uint8, one dimension. Starts of tensors are aligned.
  const at::Tensor& block() const { return block_; }
  /// Tensors that share the block's memory but are no views of it to autograd:
  /// an optimizer may step them.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  /// Bytes of the tensors, without what aligns them.
  int64_t bytes() const { return bytes_; }

 private:
  at::Tensor block_;
  std::vector<at::Tensor> tensors_;
  int64_t bytes_ = 0;
};

}  // namespace dp::detail
