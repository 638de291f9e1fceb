#include "samples/support/datasets.h"

#include <torch/types.h>

#include "samples/support/files.h"

namespace samples {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMnistClasses = 10;
constexpr int64_t kUnsignedByte = 0x08;
// The usual mean 0.1307 and standard deviation 0.3081, scaled to pixel values
// of 0 to 255.
const Normalization kMnistNormalization{{0.1307 * 255}, {0.3081 * 255}};

int64_t big_endian(const uint8_t* bytes) {
  return (int64_t{bytes[0]} << 24) | (int64_t{bytes[1]} << 16) |
         (int64_t{bytes[2]} << 8) | int64_t{bytes[3]};
}

Images load_part(const fs::path& folder, const std::string& prefix) {
  const auto find = [&folder](const std::string& name) {
    return find_in_folder(folder, {name, name + ".gz"}, "MNIST");
  };
  const auto image_file = find(prefix + "-images-idx3-ubyte");
  const auto label_file = find(prefix + "-labels-idx1-ubyte");
  const auto images = read_idx(image_file, 3);
  const auto labels = read_idx(label_file, 1).to(torch::kInt64);
  TORCH_CHECK(images.size(0) == labels.size(0),
              "Expected a label for each of ",
              images.size(0),
              " images of ",
              image_file.string(),
              ", but got ",
              labels.size(0),
              " in ",
              label_file.string(),
              ".");
  TORCH_CHECK(labels.numel() > 0,
              "Expected images in ",
              image_file.string(),
              ", but it has none.");
  TORCH_CHECK(labels.max().item<int64_t>() < kMnistClasses,
              "Expected labels of 0 to 9 in ",
              label_file.string(),
              ", but got ",
              labels.max().item<int64_t>(),
              ".");
  return {images.unsqueeze(1), labels, kMnistNormalization};
}

}  // namespace

torch::Tensor read_idx(const fs::path& file, int64_t dimensions) {
  const auto bytes = read_file(file);
  const auto size = static_cast<int64_t>(bytes.size());
  const int64_t header = 4 + 4 * dimensions;
  const int64_t magic = (kUnsignedByte << 8) | dimensions;
  TORCH_CHECK(size >= 4 && big_endian(bytes.data()) == magic,
              "Expected an IDX file with magic number ",
              magic,
              " at ",
              file.string(),
              ", but got ",
              size >= 4 ? std::to_string(big_endian(bytes.data()))
                        : std::to_string(size) + " bytes",
              ".");
  TORCH_CHECK(size >= header,
              "Expected a header of ",
              header,
              " bytes in ",
              file.string(),
              ", but the file has ",
              size,
              " bytes. Download it again.");
  std::vector<int64_t> shape;
  int64_t values = 1;
  for (int64_t i = 0; i < dimensions; ++i) {
    shape.push_back(big_endian(bytes.data() + 4 + 4 * i));
    // Limit the product to prevent an overflow; a valid product is far smaller.
    values = std::min(values * shape.back(), int64_t{1} << 31);
  }
  TORCH_CHECK(size == header + values,
              "Expected ",
              header + values,
              " bytes in ",
              file.string(),
              ", as its header says, but got ",
              size,
              ". Download it again.");
  return torch::tensor(c10::ArrayRef<uint8_t>(bytes.data() + header,
                                              static_cast<size_t>(values)),
                       torch::kUInt8)
      .view(shape);
}

Dataset load_mnist(const fs::path& folder) {
  const auto raw = folder / "MNIST" / "raw";
  const auto place = fs::is_directory(raw) ? raw : folder;
  return {"MNIST", load_part(place, "train"), load_part(place, "t10k"), 10};
}

}  // namespace samples
