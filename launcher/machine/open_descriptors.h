#pragma once

#include <vector>

namespace launcher {

/// The file descriptors that this process has open. Where /proc is not there:
/// all numbers that it may have, up to 65,536.
std::vector<int> open_descriptors();

}  // namespace launcher
