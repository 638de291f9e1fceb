#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace samples {

/// Reads a whole file. A gzip file is unpacked when the samples were built with
/// zlib.
///
/// @throws c10::Error when the file cannot be read, is a damaged gzip file, or
///   is a gzip file and there is no zlib.
///
/// Example:
/// @code
///   const auto bytes = samples::read_file("t10k-labels-idx1-ubyte.gz");
/// @endcode
std::vector<uint8_t> read_file(const std::filesystem::path& path);

/// The first of `names` that `folder` has.
///
/// @param what  the data set's name, for the error
/// @throws c10::Error when the folder does not exist or has none of them.
std::filesystem::path find_in_folder(const std::filesystem::path& folder,
                                     const std::vector<std::string>& names,
                                     const std::string& what);

}  // namespace samples
