#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace samples {

/// The first of `names` that `folder` has.
///
/// @param what  the data set's name, for the error
/// @throws c10::Error when the folder does not exist or has none of them.
std::filesystem::path find_in_folder(const std::filesystem::path& folder,
                                     const std::vector<std::string>& names,
                                     const std::string& what);

}  // namespace samples
