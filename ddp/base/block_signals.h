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

/// Blocks all signals for the calling thread in a scope. A thread that is
/// started there has all signals blocked from its first instruction.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &old_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &old_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t old_{};
};

}  // namespace ddp::detail
