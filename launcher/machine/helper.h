#pragma once

#include <sys/types.h>

namespace launcher {

/// Forks a helper process that runs code of ddprun. The kernel kills it when
/// its parent ends. Only stdin, stdout, stderr and one descriptor stay open: a
/// copy of a listener or of a connection would keep it alive. The helper has no
/// exit signal: its end sends no SIGCHLD, wait(-1) does not see it, and
/// reap_helper() reaps it.
///
/// @param kept descriptor that the helper keeps
/// @returns 0 in the helper; the helper's pid in the parent
/// @throws std::system_error if no process can be created
pid_t fork_helper(int kept);

/// Blocks until a helper has ended.
///
/// @returns whether it exited with code 0
bool reap_helper(pid_t helper);

}  // namespace launcher
