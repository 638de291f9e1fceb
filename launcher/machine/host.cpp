#include "launcher/machine/host.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "ddp/base/gpu_checks.h"
#include "launcher/base/text_file.h"
#include "launcher/machine/affinity.h"
#include "launcher/machine/cgroup_path.h"

namespace launcher {
namespace {

bool is_in_background() {
  // Negative if stdin is not this session's terminal.
  const pid_t foreground = ::tcgetpgrp(STDIN_FILENO);
  return foreground >= 0 && foreground != ::getpgrp();
}

// The quotas of all ancestors apply.
int cpus_of_cgroup2(int most) {
  std::string folder = own_cgroup_folder().value_or("");
  while (folder.size() > 1) {
    most = std::min(most, cpus_of_quota(read_text(folder + "/cpu.max"), most));
    folder.resize(folder.rfind('/'));
  }
  return most;
}

// Version 1 as seen in a container: its own cgroup is the root of the mount.
int cpus_of_cgroup1(int most) {
  const std::string folder = "/sys/fs/cgroup/cpu";
  return cpus_of_quota(read_text(folder + "/cpu.cfs_quota_us") + " " +
                           read_text(folder + "/cpu.cfs_period_us"),
                       most);
}

}  // namespace

int cpus_of_quota(std::string_view cpu_max, int fallback) {
  std::istringstream stream{std::string(cpu_max)};
  double quota = 0;
  double period = 0;
  if (!(stream >> quota >> period) || quota <= 0 || period <= 0) {
    return fallback;  // "max", -1, or a missing file
  }
  return std::max(
      1,
      static_cast<int>(std::min(std::ceil(quota / period), double{1 << 20})));
}

HostInfo probe_host() {
  HostInfo host;
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) == 0) {
    host.name = name;
  }
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    host.most_files = files.rlim_max;
  }
  host.is_in_background = is_in_background();
  host.gpu_count = ddp::detail::count_gpu_files();
  host.machine_cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  host.cpu_count = static_cast<int>(usable_cpus().size());
  host.cpu_count = std::min(cpus_of_cgroup2(host.cpu_count),
                            cpus_of_cgroup1(host.cpu_count));
  return host;
}

}  // namespace launcher
