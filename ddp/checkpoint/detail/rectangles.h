#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp::detail {

/// A rectangular part of a tensor.
struct Rectangle {
  std::vector<int64_t> offsets;  ///< in each dimension
  std::vector<int64_t> sizes;

  int64_t numel() const { return c10::multiply_integers(sizes); }
};

/// Returns the offsets of a rectangle at the beginning of a tensor.
inline std::vector<int64_t> origin(int64_t dimensions) {
  return std::vector<int64_t>(static_cast<size_t>(dimensions), 0);
}

/// Divides a run of a tensor's elements in memory into rectangles: a part of a
/// row, whole rows and a part of a row, in each dimension.
/// @param like  dense.
/// @param first  number of elements in memory before the run.
std::vector<Rectangle> rectangles_of_run(const at::Tensor& like,
                                         int64_t first,
                                         int64_t size);

/// Returns the elements that two rectangles of a tensor share.
Rectangle intersection_of(const Rectangle& one, const Rectangle& other);

/// Views a rectangle of a tensor.
/// @param part  a part of the tensor that contains the rectangle.
/// @param offsets  of the part in the tensor.
at::Tensor narrow_to(at::Tensor part,
                     const std::vector<int64_t>& offsets,
                     const Rectangle& rectangle);

}  // namespace ddp::detail
