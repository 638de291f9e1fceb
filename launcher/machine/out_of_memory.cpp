#include "launcher/machine/out_of_memory.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "launcher/base/text_file.h"

namespace launcher {
namespace {

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

OutOfMemory::OutOfMemory(std::string cgroup, std::string version_1)
    : cgroup_(std::move(cgroup)) {
  while (!cgroup_.empty() && !count()) {
    cgroup_ = parent_of(cgroup_);
  }
  if (cgroup_.empty()) {
    cgroup_ = std::move(version_1);
    file_ = "/memory.oom_control";
  }
  const auto first = count();
  if (!first) {
    cgroup_.clear();
  }
  before_ = first.value_or(0);
}

int64_t OutOfMemory::kills() const {
  return std::max<int64_t>(count().value_or(before_) - before_, 0);
}

std::optional<int64_t> OutOfMemory::count() const {
  return cgroup_.empty() ? std::nullopt
                         : oom_kills_of(read_text(cgroup_ + file_));
}

}  // namespace launcher
