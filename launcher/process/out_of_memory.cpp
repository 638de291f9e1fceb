#include "launcher/process/out_of_memory.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "launcher/text_file.h"

namespace launcher {
namespace {

std::optional<int64_t> count_of_cgroup(const std::string& folder) {
  return oom_kills_of(read_text(folder + "/memory.events"));
}

std::string parent_of(const std::string& folder) {
  const size_t slash = folder.rfind('/');
  return slash == std::string::npos ? "" : folder.substr(0, slash);
}

}  // namespace

std::optional<int64_t> oom_kills_of(std::string_view memory_events) {
  std::istringstream words{std::string(memory_events)};
  std::string name;
  for (int64_t count = 0; words >> name >> count;) {
    if (name == "oom_kill" && count >= 0) {
      return count;
    }
  }
  return std::nullopt;
}

OutOfMemory::OutOfMemory(std::string cgroup) : cgroup_(std::move(cgroup)) {
  while (!cgroup_.empty()) {
    if (const auto count = count_of_cgroup(cgroup_)) {
      before_ = *count;
      return;
    }
    cgroup_ = parent_of(cgroup_);
  }
}

int64_t OutOfMemory::kills() const {
  const auto count = cgroup_.empty() ? std::nullopt : count_of_cgroup(cgroup_);
  return std::max<int64_t>(count.value_or(before_) - before_, 0);
}

}  // namespace launcher
