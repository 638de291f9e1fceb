#include "samples/support/images.h"

#include <utility>

namespace samples {
namespace {

torch::Tensor per_channel(const std::vector<double>& values) {
  return torch::tensor(values, torch::kFloat32).view({-1, 1, 1});
}

}  // namespace

Images::Images(torch::Tensor pixels,
               torch::Tensor labels,
               Normalization normalization)
    : pixels_(std::move(pixels)),
      labels_(std::move(labels)),
      mean_(per_channel(normalization.mean)),
      deviation_(per_channel(normalization.deviation)) {
  TORCH_CHECK(
      pixels_.dim() == 4 && pixels_.scalar_type() == torch::kUInt8,
      "Expected uint8 pixels [count, channels, height, width], but got ",
      pixels_.scalar_type(),
      " ",
      pixels_.sizes());
  TORCH_CHECK(labels_.scalar_type() == torch::kInt64 &&
                  labels_.sizes() == torch::IntArrayRef({pixels_.size(0)}),
              "Expected int64 labels [",
              pixels_.size(0),
              "], but got ",
              labels_.scalar_type(),
              " ",
              labels_.sizes());
  TORCH_CHECK(
      mean_.size(0) == pixels_.size(1) && deviation_.size(0) == pixels_.size(1),
      "Expected a mean and a deviation for each of ",
      pixels_.size(1),
      " channels, but got ",
      mean_.size(0),
      " and ",
      deviation_.size(0));
}

torch::data::Example<> Images::get_batch(c10::ArrayRef<size_t> indices) {
  const auto index = torch::tensor(
      std::vector<int64_t>(indices.begin(), indices.end()), torch::kInt64);
  auto pixels = pixels_.index_select(0, index).to(torch::kFloat32);
  return {pixels.sub_(mean_).div_(deviation_), labels_.index_select(0, index)};
}

std::optional<size_t> Images::size() const {
  return static_cast<size_t>(pixels_.size(0));
}

ImageShape Images::shape() const {
  return {pixels_.size(1), pixels_.size(2), pixels_.size(3)};
}

Images Images::select(const std::vector<int64_t>& indices) const {
  const auto index = torch::tensor(indices, torch::kInt64);
  Images chosen = *this;
  chosen.pixels_ = pixels_.index_select(0, index);
  chosen.labels_ = labels_.index_select(0, index);
  return chosen;
}

}  // namespace samples
