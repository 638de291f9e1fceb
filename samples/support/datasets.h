#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "samples/support/images.h"

namespace samples {

enum class DatasetKind { digits, mnist, cifar10, synthetic };

/// Selection of the images.
struct DataOptions {
  DatasetKind kind = DatasetKind::digits;
  std::string folder;       ///< empty: the digits that came with the program
  ImageShape shape;         ///< shape of synthetic images
  int64_t images = 50'000;  ///< number of synthetic images
};

/// Loads the images that the options select.
/// @throws c10::Error if the folder or a file in it is missing or invalid.
Dataset load_dataset(const DataOptions& options);

/// Reads the digits: 1,797 images of 8x8 pixels, one per line of
/// comma-separated integers: 64 pixels of 0 to 16, then the class 0 to 9
/// (samples/data/README.md gives source and licence).
///
/// The file has no split into training and test images. Here every fifth image
/// of each class, in the file's order, is a test image: 355 test images and
/// 1,442 training images. Images of one writer may be in both parts.
///
/// @throws c10::Error that names the first invalid line.
Dataset load_digits(const std::filesystem::path& file);

/// Returns the path of the shipped file: beside this program, or in
/// ../share/ddp.
/// @throws c10::Error if neither file exists.
std::filesystem::path find_digits();

/// Reads an IDX file of unsigned bytes, the format of MNIST: a magic number,
/// the dimensions as big-endian 32-bit integers, then the values.
///
/// @param dimensions  1 for labels (magic 2049), 3 for images (magic 2051)
/// @returns uint8, with the shape given in the file.
/// @throws c10::Error if the magic number is wrong, or if the size of the file
///   does not match its dimensions.
torch::Tensor read_idx(const std::filesystem::path& file, int64_t dimensions);

/// Reads MNIST (or a data set of the same format: Fashion-MNIST, KMNIST) from
/// the four official files, plain or .gz, in `folder` or in `folder`/MNIST/raw.
///
/// @throws c10::Error if a file is missing or damaged, or if images and labels
///   do not match.
Dataset load_mnist(const std::filesystem::path& folder);

/// Reads CIFAR-10's binary version: data_batch_1.bin to data_batch_5.bin and
/// test_batch.bin, plain or .gz, in `folder` or in
/// `folder`/cifar-10-batches-bin. A record has 3,073 bytes: the class, then
/// 1,024 red values (32 rows of 32), 1,024 green values and 1,024 blue values.
///
/// @throws c10::Error if a file is missing or empty, is not a whole number of
///   records, or contains a class above 9.
Dataset load_cifar10(const std::filesystem::path& folder);

/// Returns random images with random labels, for speed measurements only: a
/// network cannot learn from them. The images are the same on every rank and in
/// every run.
///
/// @param count  number of training images. The number of test images is a
///   tenth of it, at least one.
Dataset make_synthetic(const ImageShape& shape, int64_t count);

}  // namespace samples
