#include "samples/support/datasets.h"

#include <torch/types.h>

#include "samples/support/files.h"

namespace samples {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kCifarSide = 32;
constexpr int64_t kCifarPixels = 3 * kCifarSide * kCifarSide;
constexpr int64_t kCifarRecord = 1 + kCifarPixels;
constexpr int64_t kCifarClasses = 10;
// The usual means and standard deviations of the training set, scaled to pixel
// values of 0 to 255.
const Normalization kCifarNormalization{
    {0.4914 * 255, 0.4822 * 255, 0.4465 * 255},
    {0.2470 * 255, 0.2435 * 255, 0.2616 * 255}};

// uint8 [count, 3073]
torch::Tensor read_records(const fs::path& folder, const std::string& name) {
  const auto file =
      find_in_folder(folder, {name, name + ".gz"}, "CIFAR-10 (binary version)");
  const auto bytes = read_file(file);
  const auto size = static_cast<int64_t>(bytes.size());
  TORCH_CHECK(size > 0 && size % kCifarRecord == 0,
              "Expected records of ",
              kCifarRecord,
              " bytes in ",
              file.string(),
              ", but got ",
              size,
              " bytes, which is not a whole number of them. Take CIFAR-10's "
              "binary version.");
  auto records = torch::tensor(bytes, torch::kUInt8).view({-1, kCifarRecord});
  const auto largest = records.select(1, 0).max().item<int64_t>();
  TORCH_CHECK(largest < kCifarClasses,
              "Expected classes of 0 to 9 in ",
              file.string(),
              ", but got ",
              largest,
              ". Take CIFAR-10's binary version.");
  return records;
}

Images to_images(const torch::Tensor& records) {
  return {records.narrow(1, 1, kCifarPixels)
              .reshape({-1, 3, kCifarSide, kCifarSide})
              .contiguous(),
          records.select(1, 0).to(torch::kInt64),
          kCifarNormalization};
}

}  // namespace

Dataset load_cifar10(const fs::path& folder) {
  const auto unpacked = folder / "cifar-10-batches-bin";
  const auto place = fs::is_directory(unpacked) ? unpacked : folder;
  std::vector<torch::Tensor> parts;
  for (int part = 1; part <= 5; ++part) {
    parts.push_back(
        read_records(place, "data_batch_" + std::to_string(part) + ".bin"));
  }
  return {"CIFAR-10",
          to_images(torch::cat(parts)),
          to_images(read_records(place, "test_batch.bin")),
          kCifarClasses};
}

}  // namespace samples
