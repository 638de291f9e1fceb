#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Formatting of numbers in findings.
namespace launcher {

/// Formats bytes: "64 MiB", "1.5 GiB".
std::string bytes_text(int64_t bytes);

/// Formats a number with one decimal: "2.7".
std::string decimal_text(double number);

/// Formats CUDA's version numbers: 12080 is "12.8".
std::string cuda_text(int version);

/// Formats NCCL's version numbers: 22809 is "2.28.9".
std::string nccl_text(int version);

/// Formats a list: "a, b and c".
std::string list_text(const std::vector<std::string>& items);

}  // namespace launcher
