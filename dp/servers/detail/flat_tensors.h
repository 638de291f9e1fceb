#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace dp::detail {

/// Tensors of any dtypes, the pieces, in one flat tensor of CPU memory, so that
/// one message carries them all.
class FlatTensors {
 public:
  /// Zeros of the shapes and dtypes of `like`, contiguous.
  explicit FlatTensors(const std::vector<at::Tensor>& like);

  /// uint8, one dimension. Starts of pieces are aligned.
  const at::Tensor& flat() const { return flat_; }
  /// They share the flat tensor's memory but are no views of it to autograd: an
  /// optimizer may step them.
  const std::vector<at::Tensor>& pieces() const { return pieces_; }
  /// Bytes of the pieces, without what aligns them.
  int64_t bytes() const { return bytes_; }

 private:
  at::Tensor flat_;
  std::vector<at::Tensor> pieces_;
  int64_t bytes_ = 0;
};

}  // namespace dp::detail
