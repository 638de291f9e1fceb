#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace samples {

/// Mean and standard deviation of each channel, in units of a pixel's stored
/// value.
struct Normalization {
  std::vector<double> mean;
  std::vector<double> deviation;
};

/// The size of an image.
struct ImageShape {
  int64_t channels = 3;
  int64_t height = 32;
  int64_t width = 32;
};

/// Labelled images in memory, as a dataset for torch::data loaders. Pixels are
/// stored as bytes; a batch is float32 and normalised.
///
/// Example:
/// @code
///   auto loader = torch::data::make_data_loader(images, sampler, 64);
///   for (auto& batch : *loader) model->forward(batch.data);
/// @endcode
class Images
    : public torch::data::datasets::BatchDataset<Images,
                                                 torch::data::Example<>> {
 public:
  /// @param pixels  uint8, [count, channels, height, width]
  /// @param labels  int64, [count]
  /// @throws c10::Error if a shape or a dtype differs.
  Images(torch::Tensor pixels,
         torch::Tensor labels,
         Normalization normalization);

  /// Returns the images at `indices`: float32 [n, channels, height, width], and
  /// their labels: int64 [n].
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override;
  std::optional<size_t> size() const override;

  /// Returns a set with the images at `indices`.
  Images select(const std::vector<int64_t>& indices) const;

  ImageShape shape() const;
  const torch::Tensor& pixels() const { return pixels_; }
  const torch::Tensor& labels() const { return labels_; }

 private:
  torch::Tensor pixels_;
  torch::Tensor labels_;
  torch::Tensor mean_;       // [channels, 1, 1]
  torch::Tensor deviation_;  // [channels, 1, 1]
};

/// A data set with its training and test images.
struct Dataset {
  std::string name;
  Images train;
  Images test;
  int64_t classes;
};

}  // namespace samples
