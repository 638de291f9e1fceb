#pragma once

#include <ddp/spawn.h>

#include <cstdint>
#include <string>
#include <vector>

#include "samples/experiments/replicas/fork_store.h"
#include "samples/experiments/replicas/ways.h"

namespace samples {

/// The ranks of DistributedDataParallel, seen from the process that starts
/// them: they make a step when it says so.
class Ranks {
 public:
  /// Forks: this process must not have threads yet.
  explicit Ranks(const WaysOptions& options);

  /// Lets them make a step; returns the seconds of the slowest.
  double step(int64_t number);

  /// Their reports, once they have ended.
  std::vector<RankReport> end();

  /// Of rank 0, after the last step: its `parameter_bytes`.
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
