#pragma once

#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <initializer_list>

#include "test/support/deny_system_calls.h"

// Functions that a test's child calls before it executes ddprun.
namespace launcher::test {

using ddp::test::deny_system_calls;

/// Hides the mount at `path` behind an empty tmpfs. Does nothing without root's
/// rights, but then ddprun cannot create a cgroup anyway.
///
/// @param options mount options of the tmpfs
inline void hide_mount(const char* path, const char* options = nullptr) {
  if (::unshare(CLONE_NEWNS) == 0) {
    ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    ::mount("none", path, "tmpfs", 0, options);
  }
}

inline void hide_cgroups() {
  hide_mount("/sys/fs/cgroup");
}

/// Lowers the soft limit of a resource.
inline void limit(int resource, rlim_t most) {
  rlimit limits{};
  ::getrlimit(resource, &limits);
  limits.rlim_cur = std::min(most, limits.rlim_max);
  ::setrlimit(resource, &limits);
}

inline void ignore_signals(std::initializer_list<int> numbers) {
  for (const int number : numbers) {
    ::signal(number, SIG_IGN);
  }
}

/// Changes root to a user without rights over other users' processes. Keeps the
/// right to read all files, since the test's files may lie in folders of root.
inline void become_nobody() {
  constexpr unsigned kNobody = 65534;
  ::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);
  ::setgroups(0, nullptr);
  ::setresgid(kNobody, kNobody, kNobody);
  ::setresuid(kNobody, kNobody, kNobody);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __u32 files = (1U << CAP_DAC_OVERRIDE) | (1U << CAP_DAC_READ_SEARCH);
  const __user_cap_data_struct data[2]{{files, files, files}, {}};
  ::syscall(SYS_capset, &header, data);
  for (const int capability : {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH}) {
    ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0);
  }
}

}  // namespace launcher::test
