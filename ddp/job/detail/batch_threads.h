#pragma once

namespace ddp::detail {

/// Gives threads that are created in this scope the kernel's policy
/// SCHED_BATCH, so that they do not preempt a running thread when they wake up.
/// The policy changes neither their share of the CPU nor an immediate start on
/// an idle core.
///
/// Used for the thread that polls Gloo's sockets. A rank that writes to a
/// socket holds the lock of its connection. If there are more ranks than cores,
/// the write would let the peer's polling thread preempt the writer, and the
/// writer's own polling thread would find the lock taken and poll until the
/// writer runs again.
///
/// Does nothing if the calling thread has a policy other than the default.
/// Affects only the calling thread and threads that it creates; the destructor
/// restores the policy of the calling thread.
class BatchThreadsGuard {
 public:
  BatchThreadsGuard();
  ~BatchThreadsGuard();
  BatchThreadsGuard(const BatchThreadsGuard&) = delete;
  BatchThreadsGuard& operator=(const BatchThreadsGuard&) = delete;

 private:
  bool is_batch_ = false;
};

}  // namespace ddp::detail
