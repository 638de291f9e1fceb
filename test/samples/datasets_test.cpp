#include <torch/types.h>

#include "samples/support/datasets.h"
#include "test/samples/files.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

namespace fs = std::filesystem;
using namespace samples;
using ddp::test::TemporaryFolder;
using samples::test::write;
using Bytes = std::vector<uint8_t>;

namespace datasets_test {

Bytes idx(int dimensions, const std::vector<int>& sizes, const Bytes& values) {
  Bytes bytes{0, 0, 8, static_cast<uint8_t>(dimensions)};
  for (const int size : sizes) {
    for (const int shift : {24, 16, 8, 0}) {
      bytes.push_back(static_cast<uint8_t>(size >> shift));
    }
  }
  bytes.insert(bytes.end(), values.begin(), values.end());
  return bytes;
}

Bytes counting(size_t count, int from = 0) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<uint8_t>(i + static_cast<size_t>(from));
  }
  return bytes;
}

// Writes two training images and one test image of 2x3 pixels.
void write_mnist(const fs::path& folder) {
  write(folder / "train-images-idx3-ubyte", idx(3, {2, 2, 3}, counting(12)));
  write(folder / "train-labels-idx1-ubyte", idx(1, {2}, {7, 3}));
  write(folder / "t10k-images-idx3-ubyte", idx(3, {1, 2, 3}, counting(6, 100)));
  write(folder / "t10k-labels-idx1-ubyte", idx(1, {1}, {9}));
}

Bytes cifar_record(uint8_t label, int from) {
  Bytes record{label};
  const auto pixels = counting(3072, from);
  record.insert(record.end(), pixels.begin(), pixels.end());
  return record;
}

// Writes one record per file: classes 0 to 4 for training, 9 for testing.
void write_cifar(const fs::path& folder) {
  for (uint8_t part = 1; part <= 5; ++part) {
    write(folder / ("data_batch_" + std::to_string(part) + ".bin"),
          cifar_record(static_cast<uint8_t>(part - 1), part));
  }
  write(folder / "test_batch.bin", cifar_record(9, 50));
}

torch::Tensor whole(Images images) {
  std::vector<size_t> all(*images.size());
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = i;
  }
  return images.get_batch(all).data;
}

std::vector<int64_t> values(const torch::Tensor& tensor) {
  const auto flat = tensor.to(torch::kInt64).contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

TEST_CASE("images come normalised, in the order asked for") {
  const auto pixels = torch::arange(12, torch::kUInt8).view({3, 2, 1, 2});
  const auto labels = torch::tensor({5, 6, 7}, torch::kInt64);
  Images images(pixels, labels, {{1, 2}, {2, 4}});
  const auto batch = images.get_batch(std::vector<size_t>{2, 0});
  CHECK(torch::equal(batch.target, torch::tensor({7, 5}, torch::kInt64)));
  CHECK(torch::equal(
      batch.data,
      torch::tensor({3.5, 4., 2., 2.25, -0.5, 0., 0., 0.25}, torch::kFloat32)
          .view({2, 2, 1, 2})));
  CHECK(torch::equal(images.pixels(), pixels));
  CHECK(values(images.select({1}).labels()) == std::vector<int64_t>{6});
  CHECK_THROWS_WITH(Images(pixels, labels.narrow(0, 0, 2), {{1, 2}, {2, 4}}),
                    Catch::Contains("Expected int64 labels [3]"));
  CHECK_THROWS_WITH(Images(pixels, labels, {{1}, {2}}),
                    Catch::Contains("for each of 2 channels"));
  CHECK_THROWS_WITH(Images(pixels.to(torch::kInt32), labels, {{1, 2}, {2, 4}}),
                    Catch::Contains("Expected uint8 pixels"));
}

TEST_CASE("the shipped digits: 1,797 images, a fifth of each class to test") {
  const auto digits = load_dataset(DataOptions{});
  CHECK(*digits.train.size() == 1442);
  CHECK(*digits.test.size() == 355);
  CHECK(digits.classes == 10);
  const auto train = digits.train.labels().bincount({}, 10);
  const auto test = digits.test.labels().bincount({}, 10);
  CHECK(torch::equal(test, (train + test).div(5, "floor")));

  // The file's first line is a zero, so it is the first of its class.
  CHECK(digits.train.labels()[0].item<int64_t>() == 0);
  CHECK(values(digits.train.pixels()[0][0][0]) ==
        std::vector<int64_t>{0, 0, 5, 13, 9, 1, 0, 0});

  const auto all = torch::cat({whole(digits.train), whole(digits.test)});
  CHECK(all.mean().item<double>() == Approx(0).margin(1e-3));
  CHECK(all.std().item<double>() == Approx(1).margin(1e-3));
}

TEST_CASE("digits: every fifth image of a class is a test image") {
  const TemporaryFolder folder;
  std::string text;
  for (int image = 0; image < 11; ++image) {
    for (int pixel = 0; pixel < 64; ++pixel) {
      text += std::to_string(image) + ",";
    }
    text += image == 3 ? "8\n" : "2\r\n";  // ten of class 2
  }
  write(folder / "digits.csv", text);
  const auto digits = load_digits(folder / "digits.csv");
  const auto first_pixels = [](const Images& images) {
    return values(images.pixels().select(1, 0).select(1, 0).select(1, 0));
  };
  CHECK(first_pixels(digits.test) == std::vector<int64_t>{5, 10});
  CHECK(first_pixels(digits.train) ==
        std::vector<int64_t>{0, 1, 2, 3, 4, 6, 7, 8, 9});
}

TEST_CASE("digits: a bad line is named") {
  const TemporaryFolder folder;
  const fs::path file = folder / "digits.csv";
  std::string good;
  for (int pixel = 0; pixel < 64; ++pixel) {
    good += "16,";
  }
  const auto load = [&](const std::string& second_line) {
    write(file, good + "9\n" + second_line + "\n");
    return load_digits(file);
  };
  CHECK(*load(good + "0").train.size() == 2);
  for (const auto& bad : {good + "10",
                          good + "-1",
                          good,
                          good + "3,4",
                          good + "3 ",
                          std::string("1,2,3"),
                          "17," + good.substr(3) + "1",
                          std::string("<html>")}) {
    INFO(bad);
    CHECK_THROWS_WITH(load(bad),
                      Catch::Contains("in line 2 of " + file.string()));
  }
  write(file, std::string());
  CHECK_THROWS_WITH(load_digits(file), Catch::Contains("it is empty"));
}

TEST_CASE("MNIST in its official files") {
  const TemporaryFolder folder;
  const auto check = [&] {
    const auto mnist = load_mnist(folder / "");
    CHECK(mnist.train.pixels().sizes() == torch::IntArrayRef({2, 1, 2, 3}));
    CHECK(torch::equal(mnist.train.pixels().flatten(),
                       torch::arange(12, torch::kUInt8)));
    CHECK(values(mnist.train.labels()) == std::vector<int64_t>{7, 3});
    CHECK(torch::equal(mnist.test.pixels().flatten(),
                       torch::arange(100, 106, torch::kUInt8)));
    CHECK(values(mnist.test.labels()) == std::vector<int64_t>{9});
    CHECK(whole(mnist.train)[0][0][0][0].item<float>() ==
          Approx(-0.1307 / 0.3081));
  };
  SECTION("in the folder itself") {
    write_mnist(folder / "");
    check();
  }
  SECTION("where torchvision puts them") {
    fs::create_directories(fs::path(folder / "MNIST/raw"));
    write_mnist(fs::path(folder / "MNIST/raw"));
    check();
  }
#ifdef DDP_SAMPLES_ZLIB
  SECTION("as they are downloaded") {
    write_mnist(folder / "");
    for (const auto& file : {"train-images-idx3-ubyte",
                             "train-labels-idx1-ubyte",
                             "t10k-images-idx3-ubyte",
                             "t10k-labels-idx1-ubyte"}) {
      test::gzip(folder / file);
    }
    check();
  }
#endif
}

TEST_CASE("MNIST: what is wrong is said") {
  const TemporaryFolder folder;
  write_mnist(folder / "");
  const fs::path images = folder / "train-images-idx3-ubyte";
  const fs::path labels = folder / "train-labels-idx1-ubyte";
  const auto load = [&] { return load_mnist(folder / ""); };

  CHECK_THROWS_WITH(load_mnist(folder / "none"),
                    Catch::Contains("Expected a folder with MNIST at"));
  SECTION("a missing file") {
    fs::remove(labels);
    CHECK_THROWS_WITH(load(),
                      Catch::Contains("train-labels-idx1-ubyte or "
                                      "train-labels-idx1-ubyte.gz in"));
  }
  SECTION("another magic number") {
    write(images, idx(1, {12}, counting(12)));
    CHECK_THROWS_WITH(load(),
                      Catch::Contains("magic number 2051 at " +
                                      images.string() + ", but got 2049"));
  }
  SECTION("a truncated file") {
    write(images, idx(3, {2, 2, 3}, counting(11)));
    CHECK_THROWS_WITH(
        load(),
        Catch::Contains("Expected 28 bytes in " + images.string()) &&
            Catch::Contains("but got 27"));
  }
  SECTION("a file that is too long") {
    write(images, idx(3, {2, 2, 3}, counting(13)));
    CHECK_THROWS_WITH(load(), Catch::Contains("but got 29"));
  }
  SECTION("a truncated header") {
    write(images, Bytes{0, 0, 8, 3, 0, 0});
    CHECK_THROWS_WITH(load(), Catch::Contains("a header of 16 bytes"));
    write(images, Bytes{0, 0});
    CHECK_THROWS_WITH(load(), Catch::Contains("but got 2 bytes"));
  }
  SECTION("sizes whose product overflows") {
    write(images,
          Bytes{0,
                0,
                8,
                3,
                255,
                255,
                255,
                255,
                255,
                255,
                255,
                255,
                255,
                255,
                255,
                255});
    CHECK_THROWS_WITH(load(), Catch::Contains("as its header says"));
  }
  SECTION("labels of other images") {
    write(labels, idx(1, {3}, {1, 2, 3}));
    CHECK_THROWS_WITH(load(), Catch::Contains("a label for each of 2 images"));
  }
  SECTION("a label that is none") {
    write(labels, idx(1, {2}, {1, 10}));
    CHECK_THROWS_WITH(load(), Catch::Contains("but got 10"));
  }
  SECTION("no image at all") {
    write(images, idx(3, {0, 2, 3}, {}));
    write(labels, idx(1, {0}, {}));
    CHECK_THROWS_WITH(load(), Catch::Contains("it has none"));
  }
}

TEST_CASE("CIFAR-10 in its binary version") {
  const TemporaryFolder folder;
  const auto nested = GENERATE(false, true);
  const std::string place = folder / (nested ? "cifar-10-batches-bin" : "");
  fs::create_directories(place);
  write_cifar(place);
  const auto cifar = load_cifar10(folder / "");
  CHECK(cifar.train.pixels().sizes() == torch::IntArrayRef({5, 3, 32, 32}));
  CHECK(values(cifar.train.labels()) == std::vector<int64_t>{0, 1, 2, 3, 4});
  CHECK(values(cifar.test.labels()) == std::vector<int64_t>{9});
  // Red, green and blue follow each other, row by row. The bytes count up
  // modulo 256.
  const auto first = cifar.train.pixels()[0];
  for (const auto& at : std::vector<std::vector<int64_t>>{
           {0, 0, 0}, {0, 1, 0}, {1, 0, 0}, {2, 31, 31}}) {
    const int64_t offset = at[0] * 1024 + at[1] * 32 + at[2];
    CHECK(first[at[0]][at[1]][at[2]].item<int64_t>() == (offset + 1) % 256);
  }
  CHECK(whole(cifar.test)[0][2][0][0].item<float>() ==
        Approx((50 / 255. - 0.4465) / 0.2616));
}

TEST_CASE("CIFAR-10: what is wrong is said") {
  const TemporaryFolder folder;
  write_cifar(folder / "");
  const fs::path file = folder / "data_batch_3.bin";
  const auto load = [&] { return load_cifar10(folder / ""); };
  SECTION("a missing file") {
    fs::remove(file);
    CHECK_THROWS_WITH(load(), Catch::Contains("data_batch_3.bin"));
  }
  SECTION("a truncated file") {
    fs::resize_file(file, 3072);
    CHECK_THROWS_WITH(load(),
                      Catch::Contains("Expected records of 3073 bytes in " +
                                      file.string() + ", but got 3072"));
  }
  SECTION("an empty file") {
    fs::resize_file(file, 0);
    CHECK_THROWS_WITH(load(), Catch::Contains("but got 0 bytes"));
  }
  SECTION("a class that is none, as in CIFAR-100's files") {
    write(file, cifar_record(10, 0));
    CHECK_THROWS_WITH(load(), Catch::Contains("Expected classes of 0 to 9"));
  }
}

TEST_CASE("synthetic images: any size, the same every time") {
  const auto first = make_synthetic({2, 5, 7}, 30);
  const auto second = make_synthetic({2, 5, 7}, 30);
  CHECK(first.train.pixels().sizes() == torch::IntArrayRef({30, 2, 5, 7}));
  CHECK(*first.test.size() == 3);
  CHECK(*make_synthetic({1, 1, 1}, 1).test.size() == 1);
  CHECK(torch::equal(first.train.pixels(), second.train.pixels()));
  CHECK(torch::equal(first.test.labels(), second.test.labels()));
  CHECK(first.train.labels().min().item<int64_t>() >= 0);
  CHECK(first.train.labels().max().item<int64_t>() < first.classes);
}

}  // namespace datasets_test
