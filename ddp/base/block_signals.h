#pragma once

#include <csignal>

namespace ddp::detail {

/// Of a thread of ours: the program's signals are its other threads'.
inline void block_signals() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

}  // namespace ddp::detail
