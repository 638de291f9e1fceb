#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The content of a worker's progress file; its format is described in
// ddp/base/job_files/job_directory.h.
namespace launcher {

inline constexpr size_t kMostProgressBytes = 4096;

/// Contents of a progress file.
struct Progress {
  /// Limit of the time until the next report.
  struct Limit {
    std::optional<std::chrono::milliseconds> time;
    int times = 1;  ///< factor of --hang-timeout if time is unset
  };

  pid_t pid = 0;  ///< 0: the worker itself
  std::optional<int64_t> passes;
  std::optional<int64_t> collectives;
  bool waits = false;
  std::optional<Limit> limit;
  std::string text;  ///< all other words
};

/// Pure: parses a progress file. Words that do not match the format become part
/// of `text`; bytes that are not printable ASCII become "?".
Progress parse_progress(std::string_view line);

/// Returns "step 12", "step 12, after backward pass 12, in collective 345", or
/// "" for an empty progress.
std::string describe(const Progress& progress);

}  // namespace launcher
