#pragma once

#include <sys/types.h>

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include <c10/core/Device.h>

namespace dp::detail {

/// Threads that are kept, one a replica, and run forwards together: with the
/// replica's device, the caller's state (see `CarriedState`) and, for replicas
/// on the CPU, their share of the caller's intra-op threads. They start when
/// they are first used, and do not live on in a process that is forked.
///
/// Thread contract: one caller at a time.
class ReplicaThreads {
 public:
  using Job = std::function<void(size_t replica)>;

  /// @param devices  of the replicas
  explicit ReplicaThreads(std::vector<c10::Device> devices);
  /// Ends the threads and waits for them. In a forked process there are none.
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  /// @throws c10::Error in a process that was forked after they were started.
  void expect_own_process() const;

  /// Runs `job(i)` for each replica i of `replicas`, all at once, and waits for
  /// all of them. Throws what the first of them threw, with "(replica i of n on
  /// DEVICE)" added.
  /// @throws c10::Error when a thread cannot be started; nothing has run then.
  void run(const std::vector<size_t>& replicas, const Job& job);

 private:
  class Thread;

  bool is_own_process() const;
  void start();
  void share_out_intraop_threads();
  /// What each threw, null for nothing.
  std::vector<std::exception_ptr> run_and_wait(
      const std::vector<size_t>& replicas, const Job& job);

  std::vector<c10::Device> devices_;
  std::vector<size_t> on_cpu_;                    // replicas
  std::vector<std::unique_ptr<Thread>> threads_;  // none before the first run
  pid_t process_ = 0;                             // that started them
  int intraop_share_ = 0;  // what the threads have; 0: not set yet
};

}  // namespace dp::detail
