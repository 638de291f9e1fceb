#include "launcher/machine/helper.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "launcher/base/fd.h"
#include "launcher/machine/open_descriptors.h"

namespace launcher {
namespace {

// Kernel headers may be older than the kernel.
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

bool close_range(unsigned first, unsigned last) {
  return first > last || ::syscall(SYS_close_range, first, last, 0U) == 0;
}

void close_all_but(int kept) {
  const auto number = static_cast<unsigned>(kept);
  if (close_range(STDERR_FILENO + 1U, number - 1) &&
      close_range(number + 1, ~0U)) {
    return;
  }
  // close_range() is missing before Linux 5.9 and in some sandboxes.
  for (const int fd : open_descriptors()) {
    if (fd > STDERR_FILENO && fd != kept) {
      ::close(fd);
    }
  }
}

}  // namespace

pid_t fork_helper(int kept) {
  const pid_t parent = ::getpid();
  // Fork without an exit signal.
  const auto pid = static_cast<pid_t>(
      check(static_cast<int>(::syscall(SYS_clone, 0UL, 0UL, 0UL, 0UL, 0UL)),
            "cannot start a process"));
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) {
      ::_exit(1);  // ddprun died before prctl()
    }
    close_all_but(kept);
  }
  return pid;
}

bool reap_helper(pid_t helper) {
  int status = 0;
  return retry_interrupted(
             [&] { return ::waitpid(helper, &status, __WCLONE); }) == helper &&
         WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace launcher
