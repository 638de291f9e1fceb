#include "samples/support/augment.h"

namespace samples {

torch::Tensor crop_and_flip(const torch::Tensor& images, int64_t padding) {
  using torch::indexing::Slice;
  const int64_t count = images.size(0);
  const int64_t height = images.size(2);
  const int64_t width = images.size(3);
  const auto padded =
      torch::constant_pad_nd(images, {padding, padding, padding, padding});

  const auto offset = [&] {
    return torch::randint(0, 2 * padding + 1, {count, 1}, torch::kInt64);
  };
  const auto rows = offset() + torch::arange(height);  // [n, height]
  auto columns = offset() + torch::arange(width);      // [n, width]
  const auto mirrored = torch::rand({count, 1}) < 0.5;
  columns = torch::where(mirrored, columns.flip({1}), columns);

  // Index tensors on both sides of a slice: their dimensions become the first.
  const auto image = torch::arange(count).view({-1, 1, 1});
  return padded.index({image, Slice(), rows.unsqueeze(2), columns.unsqueeze(1)})
      .permute({0, 3, 1, 2})
      .contiguous();
}

}  // namespace samples
