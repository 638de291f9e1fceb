#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "dp/detail/parameter_server/shard.h"
#include "dp/detail/parameter_server/update_policy.h"
#include "dp/parameter_server.h"

namespace dp::detail {

/// Thrown to those who wait when the job has ended.
struct JobEnded : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Where the threads of a server, one a worker, meet: a policy and a shard
/// behind one lock. Once the job has ended (`fail`, or the policy says so),
/// `take` and `take_last` throw JobEnded and all else does nothing.
///
/// Thread contract: any thread, each worker's calls from one.
class Coordinator {
 public:
  Coordinator(std::unique_ptr<UpdatePolicy> policy,
              const std::vector<at::Tensor>& parameters,
              int workers);

  /// Gives it what it serves, which must live as long. To be called, or `fail`,
  /// before anything else.
  void serve(Shard& shard);

  /// The memory for this worker's next gradients: from its `take` to its
  /// `push` it is the caller's.
  const at::Tensor& flat_gradients(int worker) const;
  void push(int worker, double loss);

  struct Parameters {
    at::Tensor flat;
    int64_t version;
  };
  /// Says that the worker wants parameters.
  void ask(int worker);
  /// Waits until it may have them; none when it still may not after `patience`.
  std::optional<Parameters> take(int worker,
                                 std::chrono::milliseconds patience);

  /// The worker pushes no more.
  void leave(int worker);
  /// As `take`, for the last parameters: waits until no worker is there.
  std::optional<Parameters> take_last(std::chrono::milliseconds patience);

  /// The worker's connection is gone.
  void lose(int worker, const std::string& reason);
  /// Ends the job. The reason may be "": then nobody has said why.
  void fail(const std::string& reason);

  /// Why the job has ended early; empty when it has not.
  std::string failure() const;
  ServerReport report() const;

 private:
  template <class Ready>
  bool wait(std::unique_lock<std::mutex>& lock,
            std::chrono::milliseconds patience,
            const Ready& ready);
  Parameters give();
  void advance();
  void make(const Step& step);
  void end(const std::string& reason);

  std::unique_ptr<UpdatePolicy> policy_;
  Shard* shard_ = nullptr;
  std::vector<FlatGradients> gradients_;  // by worker
  std::vector<double> losses_;            // by worker
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string failure_;
  ServerReport report_;
};

}  // namespace dp::detail
