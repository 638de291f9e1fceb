#pragma once

#include <sys/types.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include <c10/core/Device.h>

namespace dp::detail {

/// Persistent threads, one per replica, that run forwards concurrently. Each
/// thread has the replica's device, the caller's grad mode, autocast state,
/// profiler and current streams, and, for replicas on the CPU, a share of the
/// caller's intra-op threads. The threads start at the first use and do not
/// exist in a forked process.
///
/// Thread contract: one caller at a time, but for `expect_own_process`.
class ReplicaThreads {
 public:
  using Job = std::function<void(size_t replica)>;

  /// @param devices  one per replica
  explicit ReplicaThreads(std::vector<c10::Device> devices);
  /// Ends and joins the threads. Does not wait in a forked process, because the
  /// threads do not exist there.
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  /// Any thread may call this function.
  /// @throws c10::Error in a process that was forked after the threads were
  ///   started.
  void expect_own_process() const;

  /// Runs `job(i)` for each replica i of `replicas` concurrently and blocks
  /// until all have finished. Rethrows the exception of the first failed
  /// replica, with "(replica i of n on DEVICE)" added.
  /// @throws c10::Error if a thread cannot be started; no job has run then.
  void run(const std::vector<size_t>& replicas, const Job& job);

 private:
  class Thread;

  bool is_own_process() const;
  void start();
  void divide_intraop_threads();
  /// Returns the exception of each replica, or null.
  std::vector<std::exception_ptr> run_and_wait(
      const std::vector<size_t>& replicas, const Job& job);

  std::vector<c10::Device> devices_;
  std::vector<size_t> on_cpu_;                    // replicas on the CPU
  std::vector<std::unique_ptr<Thread>> threads_;  // empty before the first run
  std::atomic<pid_t> process_{0};  // that started the threads; 0: none
  int intraop_share_ = 0;          // per CPU replica; 0: not set yet
};

}  // namespace dp::detail
