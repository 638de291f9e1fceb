#include "launcher/doctor/probes.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "ddp/base/text/number.h"
#include "launcher/base/text_file.h"
#include "launcher/machine/cgroup.h"

namespace launcher {
namespace {

void read_shared_memory(SystemFacts& facts) {
  struct statvfs info {};
  if (::statvfs("/dev/shm", &info) == 0) {
    const auto block = static_cast<int64_t>(info.f_frsize);
    facts.shared_memory_bytes = block * static_cast<int64_t>(info.f_blocks);
    facts.free_shared_memory_bytes =
        block * static_cast<int64_t>(info.f_bavail);
  }
}

std::optional<int64_t> bytes_in(const std::string& path) {
  const std::string text = read_text(path);
  return ddp::detail::parse_number<int64_t>(text.substr(0, text.find('\n')));
}

void read_memory(SystemFacts& facts) {
  const std::string text = read_text("/proc/meminfo");
  facts.memory_bytes = meminfo_bytes(text, "MemTotal");
  facts.free_memory_bytes = meminfo_bytes(text, "MemAvailable");
  const int64_t of_machine = facts.memory_bytes;
  const auto limit_by = [&](const std::string& folder,
                            const char* limit_file,
                            const char* usage_file) {
    const auto limit = bytes_in(folder + limit_file);
    const auto used = bytes_in(folder + usage_file);
    if (!limit || !used || *limit >= of_machine) {
      return;
    }
    const int64_t cached = file_bytes(read_text(folder + "/memory.stat"));
    facts.memory_bytes = std::min(facts.memory_bytes, *limit);
    facts.free_memory_bytes =
        std::min(facts.free_memory_bytes,
                 std::clamp<int64_t>(*limit - *used + cached, 0, *limit));
    facts.is_memory_of_cgroup = true;
  };
  for (const std::string& folder : limiting_cgroup_folders()) {
    limit_by(folder, "/memory.max", "/memory.current");
  }
  for (const std::string& folder : limiting_cgroup_folders("memory")) {
    limit_by(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes");
  }
}

/// Returns why no file can be created; empty if it is possible.
std::string error_of_writing(const std::string& folder) {
  std::string path = folder + "/ddprun.XXXXXX";
  const int file = ::mkstemp(path.data());
  if (file < 0) {
    return std::strerror(errno);
  }
  ::close(file);
  ::unlink(path.c_str());
  return "";
}

}  // namespace

int64_t meminfo_bytes(std::string_view text, std::string_view name) {
  const size_t at = text.find(std::string(name) + ":");
  if (at == std::string_view::npos) {
    return 0;
  }
  std::string_view number = text.substr(at + name.size() + 1);
  number.remove_prefix(std::min(number.find_first_not_of(' '), number.size()));
  return 1024 *
         ddp::detail::parse_number<int64_t>(number.substr(0, number.find(' ')))
             .value_or(0);
}

int64_t file_bytes(std::string_view memory_stat) {
  std::istringstream lines{std::string(memory_stat)};
  int64_t own = 0;
  int64_t total = 0;  // version 1: with the cgroups below
  std::string name;
  for (int64_t bytes = 0; lines >> name >> bytes;) {
    if (name == "inactive_file" || name == "active_file") {
      own += bytes;
    } else if (name == "total_inactive_file" || name == "total_active_file") {
      total += bytes;
    }
  }
  return std::max(own, total);
}

SystemFacts probe_system(const HostInfo& host, const Environment& environment) {
  SystemFacts facts;
  facts.cpu_count = host.cpu_count;
  facts.topology = host.topology;
  read_shared_memory(facts);
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    facts.open_files = files.rlim_cur;
    facts.most_open_files = files.rlim_max;
  }
  facts.has_job_cgroup = !JobCgroup().folder("any").empty();
  read_memory(facts);
  const std::string* folder = find_variable(environment, "TMPDIR");
  facts.temporary_folder =
      folder != nullptr && !folder->empty() ? *folder : "/tmp";
  facts.temporary_error = error_of_writing(facts.temporary_folder);
  return facts;
}

}  // namespace launcher
