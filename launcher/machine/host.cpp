#include "launcher/machine/host.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "ddp/base/gpu_checks.h"
#include "ddp/base/net/address.h"
#include "launcher/base/text_file.h"
#include "launcher/machine/cgroup.h"
#include "launcher/machine/topology.h"

namespace launcher {
namespace {

bool is_in_background() {
  // Negative if stdin is not this session's terminal.
  const pid_t foreground = ::tcgetpgrp(STDIN_FILENO);
  return foreground >= 0 && foreground != ::getpgrp();
}

/// Asks no name service, which may not answer.
bool has_loopback() {
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_port = htons(1);
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto own = ddp::detail::local_end_towards(
      ddp::detail::as_address(reinterpret_cast<const sockaddr*>(&loopback)));
  return ddp::detail::numeric_host(own) == "127.0.0.1";
}

int cpus_of_cgroups(int most) {
  for (const std::string& folder : limiting_cgroup_folders()) {
    most = std::min(most, cpus_of_quota(read_text(folder + "/cpu.max"), most));
  }
  for (const std::string& folder : limiting_cgroup_folders("cpu")) {
    const std::string quota = read_text(folder + "/cpu.cfs_quota_us") + " " +
                              read_text(folder + "/cpu.cfs_period_us");
    most = std::min(most, cpus_of_quota(quota, most));
  }
  return most;
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
  host.has_loopback = has_loopback();
  host.is_in_background = is_in_background();
  host.gpu_count = ddp::detail::count_gpu_files();
  host.machine_cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  host.cpu_count = cpus_of_cgroups(static_cast<int>(usable_cpus().size()));
  return host;
}

}  // namespace launcher
