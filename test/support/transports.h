#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/exchanges/shared_memory_all_reduce.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/options.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"
#include "test/support/rank_threads.h"

namespace ddp::test {

/// A way by which ranks communicate. Tests of the reducer that use it are a
/// part of ddp_test and of gpu_ddp_test.
struct Transport {
  using Body = std::function<void(const Group& group, c10::Device device)>;

  const char* name;
  bool is_gpu;
  /// Returns whether the machine has devices for that many ranks.
  bool (*has_ranks)(int size);
  /// As `try_ranks` of local_ranks.h, with each rank's device.
  std::vector<std::string> (*try_ranks)(int size, const Body& body);

  /// Throws the first error of any rank. Does nothing with too few devices.
  void run_ranks(int size, const Body& body) const {
    if (has_ranks(size)) {
      INFO("over " << name);
      CHECK_NOTHROW(throw_first(try_ranks(size, body)));
    }
  }
};

/// Returns the transports of the linked program: NCCL in gpu_ddp_test; else the
/// default exchange, in shared memory, and AllReduce over Gloo.
const std::vector<Transport>& transports();

/// Repeats the calling test for each transport.
inline const Transport& any_transport() {
  return transports()[GENERATE(range(size_t{0}, transports().size()))];
}

/// Returns options with which a `Reducer` has a wrapper's default exchange.
inline DistributedDataParallelOptions default_options(const Group& group) {
  DistributedDataParallelOptions options;
  if (detail::monitored_backend_of(*group) != nullptr) {
    options.exchange(std::make_shared<SharedMemoryAllReduce>(group));
  }
  return options;
}

}  // namespace ddp::test
