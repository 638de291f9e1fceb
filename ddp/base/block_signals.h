#pragma once

#include <csignal>

namespace ddp::detail {

/// Blocks all signals for the calling thread, for threads of this library:
/// signals of the program must run on the program's own threads.
inline void block_signals() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

}  // namespace ddp::detail
