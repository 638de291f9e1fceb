#pragma once

namespace ddp::detail {

/// Threads that are made in its scope take no core away from a thread that runs
/// when something wakes them: they are the kernel's SCHED_BATCH, which changes
/// neither how long they may run nor that they start at once on an idle core.
///
/// For the thread that watches Gloo's sockets. A rank that writes to a socket
/// holds the lock of its connection; where ranks outnumber the cores the thread
/// of the peer, which the write wakes, runs in its place, and its own finds the
/// lock taken and asks again until the rank has run on.
///
/// Does nothing for a thread that has another policy than the default. For the
/// thread that makes it; afterwards that has its policy back.
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
