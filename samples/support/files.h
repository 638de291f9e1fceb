#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace samples {

/// Reads a whole file. Unpacks a gzip file if the samples were built with zlib.
///
/// @throws c10::Error if the file cannot be read, is a damaged gzip file, or is
///   a gzip file and the samples were built without zlib.
///
/// Example:
/// @code
///   const auto bytes = samples::read_file("t10k-labels-idx1-ubyte.gz");
/// @endcode
std::vector<uint8_t> read_file(const std::filesystem::path& path);

/// Returns the path of the first of `names` that exists in `folder`.
///
/// @param data_set  its name, for the error
/// @throws c10::Error if the folder does not exist or contains none of the
///   names.
std::filesystem::path find_in_folder(const std::filesystem::path& folder,
                                     const std::vector<std::string>& names,
                                     const std::string& data_set);

}  // namespace samples
