#include "launcher/doctor/probes.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

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

}  // namespace

SystemFacts probe_system(const HostInfo& host) {
  SystemFacts facts;
  facts.cpu_count = host.cpu_count;
  facts.topology = host.topology;
  read_shared_memory(facts);
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    facts.open_files = files.rlim_cur;
    facts.most_open_files = files.rlim_max;
  }
  return facts;
}

}  // namespace launcher
