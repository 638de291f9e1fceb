#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "dp/parameter_server.h"
#include "test/dp/threads.h"
#include "test/support/rank_threads.h"

namespace dp::test {

/// Ranks that are threads of this process, with a common HashStore. No wait
/// lasts longer than a minute, unless the test sets other time-outs, and no
/// thread may remain.
class LocalWorld {
 public:
  explicit LocalWorld(int size)
      : size_(size), store_(c10::make_intrusive<c10d::HashStore>()) {}

  /// Runs `body(rank, options)` on each rank, with options for this world.
  /// Returns each rank's error, "" for none.
  ///
  /// @throws std::runtime_error if threads remain.
  std::vector<std::string> try_ranks(
      const ParameterServerOptions& options,
      const std::function<void(int, const ParameterServerOptions&)>& body) {
    const int threads = count_own_threads();
    const auto errors = ddp::test::try_rank_threads(
        size_, [&](int rank) { body(rank, at(rank, options)); });
    if (!eventually([&] { return count_own_threads() <= threads; })) {
      throw std::runtime_error("threads are left");
    }
    return errors;
  }

  /// Like try_ranks(), but throws the first rank's error.
  void run_ranks(
      const ParameterServerOptions& options,
      const std::function<void(int, const ParameterServerOptions&)>& body) {
    ddp::test::throw_first(try_ranks(options, body));
  }

 private:
  ParameterServerOptions at(int rank, ParameterServerOptions options) const {
    const ParameterServerOptions usual;
    if (options.timeout() == usual.timeout()) {
      options.timeout(kPatience);
    }
    if (options.connect_timeout() == usual.connect_timeout()) {
      options.connect_timeout(kPatience);
    }
    ddp::WorkerEnv env;
    env.rank = rank;
    env.world_size = size_;
    return options.worker_env(env).store(store_);
  }

  int size_;
  c10::intrusive_ptr<c10d::HashStore> store_;
};

}  // namespace dp::test
