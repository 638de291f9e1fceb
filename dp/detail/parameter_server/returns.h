#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "dp/detail/parameter_server/link.h"
#include "dp/detail/parameter_server/session.h"

namespace dp::detail {

/// The same for a worker that was gone, with servers that wait for it: takes
/// part in the session that it left. Of rank 0's module it gets what servers do
/// not hold.
Session rejoin_session(torch::nn::Module& module,
                       const ParameterServerOptions& options);

/// A server's wait for workers that are gone.
class Returns {
 public:
  /// @param patience  with each of them.
  Returns(const Session& session,
          const torch::nn::Module& module,
          std::chrono::milliseconds timeout,
          std::chrono::milliseconds patience);

  /// The connection of a worker that has come back. Null when it has not in
  /// time, or when `rest`, which takes a moment, returns true.
  /// Thread contract: any thread, for each worker one.
  std::unique_ptr<Link> wait_for(int worker, const std::function<bool()>& rest);

  /// Nobody is waited for any more.
  void close() const;

 private:
  std::unique_ptr<Link> welcome(int worker, int64_t time) const;

  Session way_;  // its topology and route
  const torch::nn::Module& module_;
  std::chrono::milliseconds timeout_;
  std::chrono::milliseconds patience_;
  std::vector<int64_t> times_;  // that each worker has come back
};

}  // namespace dp::detail
