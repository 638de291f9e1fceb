#pragma once

#include <sys/types.h>

namespace launcher {

/// Forks a helper of ddprun, a process that runs code of ddprun's own. It ends
/// with its parent, and keeps only stdin, stdout, stderr and one descriptor
/// open: a copy of a listener or of a connection would keep it alive. Its end
/// sends no SIGCHLD, and wait(-1) does not see it: reap_helper() reaps it.
///
/// @param kept descriptor that the helper keeps
/// @returns 0 in the helper
/// @throws std::system_error when no process can be made
pid_t fork_helper(int kept);

/// Waits for a helper's end.
///
/// @returns whether it ended by itself, with exit code 0
bool reap_helper(pid_t helper);

}  // namespace launcher
