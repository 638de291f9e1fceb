#include "launcher/doctor/probe_system.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "ddp/base/text/number.h"
#include "launcher/base/text_file.h"
#include "launcher/machine/cgroup_path.h"
#include "launcher/machine/job_cgroup.h"

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

void limit_memory(SystemFacts& facts,
                  std::optional<int64_t> limit,
                  std::optional<int64_t> used) {
  if (!limit || *limit >= facts.memory_bytes) {
    return;
  }
  facts.memory_bytes = *limit;
  facts.free_memory_bytes = std::min(
      facts.free_memory_bytes, std::max<int64_t>(0, *limit - used.value_or(0)));
  facts.is_memory_of_cgroup = true;
}

void read_memory(SystemFacts& facts) {
  const std::string text = read_text("/proc/meminfo");
  facts.memory_bytes = meminfo_bytes(text, "MemTotal");
  facts.free_memory_bytes = meminfo_bytes(text, "MemAvailable");
  // The limits of all ancestors apply.
  std::string folder = own_cgroup_folder().value_or("");
  while (folder.size() > 1) {
    limit_memory(facts,
                 bytes_in(folder + "/memory.max"),
                 bytes_in(folder + "/memory.current"));
    folder.resize(folder.rfind('/'));
  }
  const std::string old = "/sys/fs/cgroup/memory/memory.";  // version 1
  limit_memory(facts,
               bytes_in(old + "limit_in_bytes"),
               bytes_in(old + "usage_in_bytes"));
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
