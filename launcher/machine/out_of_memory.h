#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace launcher {

/// How many processes the kernel has killed for want of memory, by the text of
/// a cgroup's memory.events, which has those of its descendants, too, or of a
/// version 1 cgroup's memory.oom_control; nothing when it does not say.
std::optional<int64_t> oom_kills_of(std::string_view memory_events);

/// Counts those of a cgroup from now on. Where the cgroup itself does not count
/// them, since nobody has given it the memory controller, the nearest one above
/// it does, which may hold other processes as well. Where version 1 has that
/// controller, none of these does.
class OutOfMemory {
 public:
  /// @param cgroup folder of one of version 2; empty: there is none
  /// @param version_1 folder of the memory controller's of version 1, in which
  ///   the same processes are; empty: there is none
  OutOfMemory(std::string cgroup, std::string version_1);

  /// 0 when nobody counts.
  int64_t kills() const;

  /// The folder of the cgroup that counts; empty: there is none.
  const std::string& cgroup() const { return cgroup_; }

 private:
  std::optional<int64_t> count() const;

  std::string cgroup_;
  const char* file_ = "/memory.events";
  int64_t before_ = 0;
};

}  // namespace launcher
