#include "ddp/checkpoint/detail/tensor_pieces.h"

#include <algorithm>
#include <numeric>

namespace ddp::detail {

std::vector<TensorPiece> pieces_of_run(const std::string& name,
                                       const at::Tensor& like,
                                       const TensorRun& run) {
  if (like.numel() == 0) {
    return {{name, origin(like.dim()), run.elements.view(like.sizes())}};
  }
  auto order = origin(like.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return like.stride(a) > like.stride(b);
  });
  std::vector<TensorPiece> pieces;
  int64_t done = 0;
  while (done < run.elements.numel()) {
    const int64_t left = run.elements.numel() - done;
    auto offsets = origin(like.dim());
    auto sizes = like.sizes().vec();
    int64_t row = like.numel();        // elements of the dimensions after this
    int64_t begin = run.first + done;  // in the row of the one before
    for (const auto dimension : order) {
      const auto i = static_cast<size_t>(dimension);
      row /= sizes[i];
      offsets[i] = begin / row;
      begin %= row;
      if (begin == 0 && left >= row) {
        sizes[i] = std::min(left / row, sizes[i] - offsets[i]);
        break;
      }
      sizes[i] = 1;
    }
    pieces.push_back(
        {name,
         offsets,
         run.elements.as_strided(
             sizes, like.strides(), run.elements.storage_offset() + done)});
    done += pieces.back().elements.numel();
  }
  return pieces;
}

int64_t copy_common(const TensorPiece& from, const TensorPiece& to) {
  auto source = from.elements;
  auto target = to.elements;
  for (size_t i = 0; i < from.offsets.size(); ++i) {
    const auto dimension = static_cast<int64_t>(i);
    const int64_t begin = std::max(from.offsets[i], to.offsets[i]);
    const int64_t end = std::min(from.offsets[i] + source.size(dimension),
                                 to.offsets[i] + target.size(dimension));
    if (begin >= end) {
      return 0;
    }
    source = source.narrow(dimension, begin - from.offsets[i], end - begin);
    target = target.narrow(dimension, begin - to.offsets[i], end - begin);
  }
  target.copy_(source);
  return target.numel();
}

}  // namespace ddp::detail
