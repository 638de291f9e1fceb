#include "samples/support/datasets.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <algorithm>

namespace samples {
namespace {

constexpr int64_t kClasses = 10;
constexpr uint64_t kSeed = 20261121;

Images random_images(const ImageShape& shape,
                     int64_t count,
                     const at::Generator& generator) {
  const auto channels = static_cast<size_t>(shape.channels);
  return {torch::randint(0,
                         256,
                         {count, shape.channels, shape.height, shape.width},
                         generator,
                         torch::kUInt8),
          torch::randint(0, kClasses, {count}, generator, torch::kInt64),
          Normalization{std::vector<double>(channels, 127.5),
                        std::vector<double>(channels, 73.9)}};
}

}  // namespace

Dataset make_synthetic(const ImageShape& shape, int64_t count) {
  const auto generator = at::detail::createCPUGenerator(kSeed);
  auto train = random_images(shape, count, generator);
  auto test = random_images(shape, std::max<int64_t>(count / 10, 1), generator);
  return {"synthetic", std::move(train), std::move(test), kClasses};
}

Dataset load_dataset(const DataOptions& options) {
  const std::filesystem::path folder = options.folder;
  switch (options.kind) {
    case DatasetKind::mnist:
      return load_mnist(folder);
    case DatasetKind::cifar10:
      return load_cifar10(folder);
    case DatasetKind::synthetic:
      return make_synthetic(options.shape, options.images);
    default:
      return load_digits(folder.empty() ? find_digits()
                                        : folder / "digits.csv");
  }
}

}  // namespace samples
