#pragma once

#include <filesystem>

#include "samples/support/images.h"

namespace samples {

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

}  // namespace samples
