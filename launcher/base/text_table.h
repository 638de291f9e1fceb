#pragma once

#include <string>
#include <vector>

namespace launcher {

/// Rows of one length as lines, their columns aligned to the left.
std::string text_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace launcher
