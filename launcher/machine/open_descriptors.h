#pragma once

#include <vector>

namespace launcher {

/// Returns the open file descriptors of this process. Without /proc, returns
/// all possible numbers, up to 65,536.
std::vector<int> open_descriptors();

}  // namespace launcher
