#include "ddp/checkpoint/detail/rectangles.h"

#include <algorithm>
#include <numeric>

namespace ddp::detail {
namespace {

/// Divides the elements from `begin` to `end` of the dimensions from
/// `order[depth]` on. `place` has the outer dimensions.
void add_rectangles(const at::Tensor& like,
                    const std::vector<int64_t>& order,
                    size_t depth,
                    int64_t begin,
                    int64_t end,
                    Rectangle place,
                    std::vector<Rectangle>& result) {
  int64_t row = 1;  // elements of the inner dimensions
  for (size_t i = depth + 1; i < order.size(); ++i) {
    row *= like.size(order[i]);
  }
  while (begin < end && depth < order.size()) {
    const auto dimension = static_cast<size_t>(order[depth]);
    const int64_t first = begin / row;
    const bool has_whole_row = begin % row == 0 && end - begin >= row;
    const int64_t count = has_whole_row ? (end - begin) / row : 1;
    const int64_t next = std::min(end, (first + count) * row);
    place.offsets[dimension] = first;
    place.sizes[dimension] = count;
    if (has_whole_row) {
      result.push_back(place);
    } else {
      add_rectangles(like,
                     order,
                     depth + 1,
                     begin - first * row,
                     next - first * row,
                     place,
                     result);
    }
    begin = next;
  }
}

}  // namespace

std::vector<Rectangle> rectangles_of_run(const at::Tensor& like,
                                         int64_t first,
                                         int64_t size) {
  std::vector<int64_t> order(static_cast<size_t>(like.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return like.stride(a) > like.stride(b);
  });
  const Rectangle whole{std::vector<int64_t>(order.size(), 0),
                        like.sizes().vec()};
  std::vector<Rectangle> result;
  if (order.empty() && size == 1) {
    result.push_back(whole);
  }
  add_rectangles(like, order, 0, first, first + size, whole, result);
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
                     const Rectangle& of,
                     const Rectangle& rectangle) {
  for (size_t i = 0; i < of.sizes.size(); ++i) {
    part = part.narrow(static_cast<int64_t>(i),
                       rectangle.offsets[i] - of.offsets[i],
                       rectangle.sizes[i]);
  }
  return part;
}

}  // namespace ddp::detail
