#pragma once

#include <cstdint>
#include <string>

namespace launcher {

/// Returns a count with its noun: "1 worker", "8 workers".
std::string count_text(int64_t count, const std::string& what);

}  // namespace launcher
