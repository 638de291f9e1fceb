#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/checkpoint/pickle/deferred_tensor.h"

namespace ddp::detail {

/// A rectangular part of a tensor.
struct TensorPiece {
  std::string name;              ///< of the tensor
  std::vector<int64_t> offsets;  ///< in each dimension
  at::Tensor elements;
};

/// Returns the offsets of a piece at the beginning of a tensor.
inline std::vector<int64_t> origin(int64_t dimensions) {
  return std::vector<int64_t>(static_cast<size_t>(dimensions), 0);
}

/// Views a run of a tensor's elements as pieces: a part of a row, whole rows
/// and a part of a row, in each dimension. A tensor without elements is one
/// piece.
/// @param like  has the sizes and strides of the tensor, which is dense.
std::vector<TensorPiece> pieces_of_run(const std::string& name,
                                       const at::Tensor& like,
                                       const TensorRun& run);

/// Copies the elements that two pieces of a tensor have in common. Returns
/// their number.
int64_t copy_common(const TensorPiece& from, const TensorPiece& to);

}  // namespace ddp::detail
