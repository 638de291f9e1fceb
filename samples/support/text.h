#pragma once

#include <string>

namespace samples {

/// `std::snprintf` into a string. The compiler checks the arguments.
///
/// Example:
/// @code
///   samples::format("loss %.9g", 0.25)
/// @endcode
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace samples
