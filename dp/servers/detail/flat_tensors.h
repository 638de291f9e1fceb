#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace dp::detail {

/// Tensors of any dtypes (pieces) in one flat tensor in CPU memory, so that one
/// message can carry them all.
class FlatTensors {
 public:
  /// Creates contiguous zeros with the shapes and dtypes of `like`.
  explicit FlatTensors(const std::vector<at::Tensor>& like);

  /// The memory of all pieces: uint8, one dimension. Pieces start at aligned
  /// offsets.
  const at::Tensor& flat() const { return flat_; }
  /// Pieces share the flat tensor's memory, but autograd does not treat them as
  /// views, so an optimizer may update them.
  const std::vector<at::Tensor>& pieces() const { return pieces_; }
  /// Size of the pieces in bytes, without padding.
  int64_t bytes() const { return bytes_; }

 private:
  at::Tensor flat_;
  std::vector<at::Tensor> pieces_;
  int64_t bytes_ = 0;
};

}  // namespace dp::detail
