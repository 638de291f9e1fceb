#pragma once

#include <cstdint>
#include <string>
#include <vector>

// How numbers are written in findings.
namespace launcher {

/// "64 MiB", "1.5 GiB".
std::string bytes_text(int64_t bytes);

/// One decimal: "2.7".
std::string decimal_text(double number);

/// Seconds as "85 us", "2.7 ms".
std::string round_trip_text(double seconds);

/// "12.5 MB/s", "2.3 GB/s".
std::string rate_text(double bytes_per_second);

/// CUDA's numbers: 12080 is "12.8".
std::string cuda_text(int version);

/// NCCL's numbers: 22809 is "2.28.9".
std::string nccl_text(int version);

/// "a, b and c".
std::string list_text(const std::vector<std::string>& items);

}  // namespace launcher
