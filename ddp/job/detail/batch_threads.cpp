#include "ddp/job/detail/batch_threads.h"

#include <sched.h>

namespace ddp::detail {
namespace {

/// Sets the policy of the calling thread; returns false if a sandbox forbids
/// it.
bool set_policy(int policy) {
  const sched_param no_priority{};
  return ::sched_setscheduler(0, policy, &no_priority) == 0;
}

}  // namespace

BatchThreadsGuard::BatchThreadsGuard()
    : is_batch_(::sched_getscheduler(0) == SCHED_OTHER &&
                set_policy(SCHED_BATCH)) {}

BatchThreadsGuard::~BatchThreadsGuard() {
  if (is_batch_) {
    set_policy(SCHED_OTHER);
  }
}

}  // namespace ddp::detail
