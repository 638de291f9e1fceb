#include "launcher/machine/helper.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddp/base/child_process.h"
#include "launcher/base/fd.h"
#include "launcher/machine/process_state.h"

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
  const pid_t pid = ddp::detail::fork_child({.signals_end = false});
  if (pid == 0) {
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
