#pragma once

#include <filesystem>

#include "samples/support/images.h"

namespace samples {

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

}  // namespace samples
