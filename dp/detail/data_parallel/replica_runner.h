#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "dp/detail/data_parallel/replica_threads.h"

namespace dp::detail {

/// Runs forwards on kept threads, one a replica: with the device, the caller's
/// state (see `CarriedState`) and, for replicas on the CPU, their share of the
/// caller's intra-op threads. The threads start when they are first used.
///
/// Thread contract: one caller at a time.
class ReplicaRunner {
 public:
  /// @param devices  of the replicas
  explicit ReplicaRunner(std::vector<c10::Device> devices);

  /// Runs `job(i)` for each replica i of `replicas`, all at once, and waits for
  /// all of them. Throws what the first of them threw, with "(replica i of n on
  /// DEVICE)" added.
  void run(const std::vector<size_t>& replicas,
           const std::function<void(size_t replica)>& job);

 private:
  void share_out_intraop_threads();

  std::vector<c10::Device> devices_;
  std::vector<size_t> on_cpu_;  // replicas
  std::unique_ptr<ReplicaThreads> threads_;
  int intraop_share_ = 0;  // what the threads have; 0: not set yet
};

}  // namespace dp::detail
