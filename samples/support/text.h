#pragma once

#include <cstdint>
#include <string>

namespace samples {

/// `std::snprintf` into a string. The compiler checks the arguments.
///
/// Example:
/// @code
///   samples::format("loss %.9g", 0.25)
/// @endcode
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

/// Returns, for example, "1 rank" or "2 ranks".
std::string count_of(int64_t count, const std::string& what);

/// Prints a line with one write and flushes it, because ranks share a terminal.
void print(const std::string& line);

/// Prints a line on rank 0 only.
void print_on_first(const std::string& line);

}  // namespace samples
