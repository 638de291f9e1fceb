#pragma once

#include <filesystem>

#include "samples/support/images.h"

namespace samples {

/// Reads CIFAR-10's binary version: data_batch_1.bin to data_batch_5.bin and
/// test_batch.bin, plain or .gz, in `folder` or in
/// `folder`/cifar-10-batches-bin. A record has 3,073 bytes: the class, then 32
/// rows of 32 red values, as many green ones and blue ones.
///
/// @throws c10::Error when a file is missing, empty, not a whole number of
///   records, or has a class above 9.
Dataset load_cifar10(const std::filesystem::path& folder);

}  // namespace samples
