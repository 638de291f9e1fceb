#include "ddp/checkpoint/detail/rectangles.h"

#include <algorithm>
#include <numeric>

namespace ddp::detail {
std::vector<Rectangle> rectangles_of_run(const at::Tensor& like,
                                         int64_t first,
                                         int64_t size) {
  if (size == like.numel()) {
    return {{origin(like.dim()), like.sizes().vec()}};
  }
  auto order = origin(like.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return like.stride(a) > like.stride(b);
  });
  std::vector<Rectangle> result;
  for (int64_t left = size; left > 0; left -= result.back().numel()) {
    Rectangle place{origin(like.dim()), like.sizes().vec()};
    int64_t row = like.numel();  // elements of the dimensions after this one
    int64_t begin = first + size - left;  // in the row of the one before
    for (const auto dimension : order) {
      const auto i = static_cast<size_t>(dimension);
      row /= like.size(dimension);
      place.offsets[i] = begin / row;
      place.sizes[i] = 1;
      begin %= row;
      if (begin == 0 && left >= row) {
        place.sizes[i] =
            std::min(left / row, like.size(dimension) - place.offsets[i]);
        break;
      }
    }
    result.push_back(place);
  }
  return result;
}

Rectangle intersection_of(const Rectangle& one, const Rectangle& other) {
  auto result = one;
  for (size_t i = 0; i < one.sizes.size(); ++i) {
    const int64_t end = std::min(one.offsets[i] + one.sizes[i],
                                 other.offsets[i] + other.sizes[i]);
    result.offsets[i] = std::max(one.offsets[i], other.offsets[i]);
    result.sizes[i] = std::max<int64_t>(end - result.offsets[i], 0);
  }
  return result;
}

at::Tensor narrow_to(at::Tensor part,
                     const std::vector<int64_t>& offsets,
                     const Rectangle& rectangle) {
  for (size_t i = 0; i < offsets.size(); ++i) {
    part = part.narrow(static_cast<int64_t>(i),
                       rectangle.offsets[i] - offsets[i],
                       rectangle.sizes[i]);
  }
  return part;
}

}  // namespace ddp::detail
