#pragma once

#include <torch/types.h>

#include <filesystem>

#include "samples/support/images.h"
#include "samples/support/train_options.h"

namespace samples {

/// Loads the images that the options name.
/// @throws c10::Error when the folder or a file in it is not as it should be.
Dataset load_dataset(const DataOptions& options);

/// Reads the digits: 1,797 images of 8x8, one a line of comma-separated
/// integers, 64 pixels of 0 to 16 and then the class 0 to 9
/// (samples/data/README.md has the source and the licence).
///
/// The file has no split of its own. Here every fifth image of each class, in
/// the file's order, is a test image: 355 of them, 1,442 to train on. A writer
/// may be in both parts.
///
/// @throws c10::Error that names the line when one is not as described.
Dataset load_digits(const std::filesystem::path& file);

/// Where the shipped file lies: beside this program, or in ../share/ddp.
/// @throws c10::Error when it is in neither place.
std::filesystem::path find_digits();

/// Reads one IDX file of unsigned bytes, as MNIST has them: a magic number,
/// the dimensions as big-endian 32-bit integers, then the values.
///
/// @param dimensions  1 for labels (magic 2049), 3 for images (magic 2051)
/// @returns uint8, of the shape that the file gives.
/// @throws c10::Error for another magic number or another size than the
///   dimensions say.
torch::Tensor read_idx(const std::filesystem::path& file, int64_t dimensions);

/// Reads MNIST (or a set in its format: Fashion-MNIST, KMNIST) from the four
/// official files, plain or .gz, in `folder` or in `folder`/MNIST/raw.
///
/// @throws c10::Error when one is missing, damaged, or does not fit its
///   partner.
Dataset load_mnist(const std::filesystem::path& folder);

/// Reads CIFAR-10's binary version: data_batch_1.bin to data_batch_5.bin and
/// test_batch.bin, plain or .gz, in `folder` or in
/// `folder`/cifar-10-batches-bin. A record has 3,073 bytes: the class, then 32
/// rows of 32 red values, as many green ones and blue ones.
///
/// @throws c10::Error when a file is missing, empty, not a whole number of
///   records, or has a class above 9.
Dataset load_cifar10(const std::filesystem::path& folder);

/// Random images with random labels, for speed measurements only: there is
/// nothing to learn in them. The same on every rank and at every run.
///
/// @param count  images to train on; a tenth as many, at least one, to test on
Dataset make_synthetic(const ImageShape& shape, int64_t count);

}  // namespace samples
