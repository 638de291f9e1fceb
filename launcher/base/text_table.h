#pragma once

#include <string>
#include <vector>

namespace launcher {

/// Formats rows of equal length as lines with left-aligned columns.
std::string text_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace launcher
