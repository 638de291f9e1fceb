#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace launcher {

/// How many processes the kernel has killed for want of memory, by the text of
/// a cgroup's memory.events; nothing when it does not say. Of its descendants,
/// too.
std::optional<int64_t> oom_kills_of(std::string_view memory_events);

/// Counts those of a cgroup from now on. Where the cgroup itself does not count
/// them, since nobody has given it the memory controller, the nearest one above
/// it does, which may hold other processes as well.
class OutOfMemory {
 public:
  /// @param cgroup its folder; empty: nothing is counted
  explicit OutOfMemory(std::string cgroup);

  /// 0 when nobody counts.
  int64_t kills() const;

  /// The folder of the cgroup that counts; empty: there is none.
  const std::string& cgroup() const { return cgroup_; }

 private:
  std::string cgroup_;
  int64_t before_ = 0;
};

}  // namespace launcher
