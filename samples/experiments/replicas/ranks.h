#pragma once

#include <ddp/spawn.h>

#include <cstdint>
#include <string>
#include <vector>

#include "samples/experiments/replicas/fork_store.h"
#include "samples/experiments/replicas/ways.h"

namespace samples {

/// The ranks of DistributedDataParallel, controlled by the process that starts
/// them: the ranks make a step when `step` is called.
class Ranks {
 public:
  /// Forks the ranks. This process must not have threads yet.
  explicit Ranks(const WaysOptions& options);

  /// Makes the ranks run step `number`. Returns the seconds of the slowest
  /// rank.
  double step(int64_t number);

  /// Waits until the ranks have ended and returns their reports.
  std::vector<RankReport> end();

  /// Returns the `parameter_bytes` of rank 0 after the last step.
  std::vector<uint8_t> parameters();

 private:
  template <typename T>
  T take(const std::string& key);

  int count_;
  ForkStore shared_;
  ddp::SpawnContext processes_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace samples
