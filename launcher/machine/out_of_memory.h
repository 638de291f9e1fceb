#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace launcher {

/// Returns the number of processes that the kernel killed because memory was
/// full. Parses the text of a cgroup's memory.events, which includes its
/// descendants, or of a version 1 cgroup's memory.oom_control. Returns
/// std::nullopt if the text has no count.
std::optional<int64_t> oom_kills_of(std::string_view memory_events);

/// Counts the out-of-memory kills of a cgroup since construction. If the cgroup
/// has no counter because it lacks the memory controller, uses its nearest
/// ancestor with a counter, which may include other processes. If no version 2
/// cgroup has a counter, uses the version 1 memory controller.
class OutOfMemory {
 public:
  /// @param cgroup folder of a version 2 cgroup; empty: none
  /// @param version_1 folder of the same processes in the version 1 memory
  ///   controller; empty: none
  OutOfMemory(std::string cgroup, std::string version_1);

  /// Returns the number of kills; 0 without a counter.
  int64_t kills() const;

  /// Folder of the cgroup that counts; empty: none.
  const std::string& cgroup() const { return cgroup_; }

 private:
  std::optional<int64_t> count() const;

  std::string cgroup_;
  const char* file_ = "/memory.events";
  int64_t before_ = 0;
};

}  // namespace launcher
