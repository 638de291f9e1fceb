#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "dp/detail/parameter_server/gradients.h"
#include "dp/detail/parameter_server/packet.h"
#include "dp/detail/parameter_server/parts/held_gradients.h"
#include "dp/detail/parameter_server/policy/update_policy.h"
#include "dp/detail/parameter_server/sent_copies.h"
#include "dp/detail/parameter_server/shard.h"
#include "dp/parameter_server.h"

namespace dp::detail {

/// Thrown to those who wait when the job has ended.
struct JobEnded : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Where the threads of a server, one a worker, meet: a policy and a shard
/// behind one lock. Once the job has ended (`fail`, or the policy says so),
/// what waits throws JobEnded and all else does nothing.
///
/// Its memory does not grow with the workers: so many gradients and their sum,
/// and two copies of the parameters where updates come while workers take them.
///
/// Thread contract: any thread, each worker's calls from one.
class Coordinator {
 public:
  /// @param parameters  of which the gradients are.
  /// @param gradients_held  at once, beside their sum.
  Coordinator(std::unique_ptr<UpdatePolicy> policy,
              const std::vector<at::Tensor>& parameters,
              int workers,
              int gradients_held);

  /// Gives it what it serves, which must live as long. To be called, or `fail`,
  /// before anything else.
  /// @param updates  that the shard has had before.
  /// @param after_update  is called with the updates that it has had then.
  using AfterUpdate = std::function<void(int64_t updates)>;
  void serve(Shard& shard,
             int64_t updates = 0,
             AfterUpdate after_update = nullptr);

  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  /// Waits for memory for gradients of these contents, which until `push` is
  /// the caller's to fill. Again before it for more of them, without waiting;
  /// see `HeldGradients`. None when there still is none after `patience`. The
  /// worker whose gradients the others wait for always gets some.
  std::optional<at::Tensor> lend(int worker,
                                 const Contents& contents,
                                 std::chrono::milliseconds patience);
  void push(int worker, double loss);
  /// The worker pushes nothing for what it took last: the others do not wait
  /// for it, and what was lent since is free.
  void drop(int worker);

  struct Parameters {
    at::Tensor flat;
    int64_t version;
  };
  /// Says that the worker wants parameters.
  void ask(int worker);
  /// Waits until it may have them; none when it still may not after `patience`.
  /// They stay as they are until `given`.
  /// @param rows  of the parameters, if not all.
  std::optional<Parameters> take(int worker,
                                 const Rows& rows,
                                 std::chrono::milliseconds patience);
  void given(int worker);

  /// The worker pushes no more.
  void leave(int worker);
  /// As `take`, for the last parameters: waits until no worker is there.
  std::optional<Parameters> take_last(std::chrono::milliseconds patience);

  /// The worker's connection is gone, but it may come back: the others do not
  /// wait for what it took. False when it need not.
  bool suspend(int worker);
  void welcome(int worker);
  /// Waits a moment, or until the job has ended: then it returns true.
  bool rest();
  /// The worker is gone for good.
  void lose(int worker, const std::string& reason);
  /// Ends the job. The reason may be "": then nobody has said why.
  void fail(const std::string& reason);

  /// Why the job has ended early; empty when it has not.
  std::string failure() const;
  ServerReport report() const;

 private:
  /// What one worker has of this server's memory.
  struct Place {
    std::optional<HeldGradients> gradients;  // from `lend` until added up
    bool has_pushed = false;                 // they have come
    double loss = 0;
  };

  template <class Ready>
  bool wait(std::unique_lock<std::mutex>& lock,
            std::chrono::milliseconds patience,
            const Ready& ready);
  Place& place(int worker) { return places_[static_cast<size_t>(worker)]; }
  void take_back(int worker);
  at::Tensor memory_for_gradients();
  bool may_lend(int worker) const;
  bool may_copy(const Rows& rows) const;
  at::Tensor copy_of(int worker, const Rows& rows);
  void advance();
  void add(int worker);
  void make(const Step& step);
  void end(const std::string& reason);

  std::vector<at::Tensor> parameters_;
  const size_t gradients_held_;
  std::unique_ptr<UpdatePolicy> policy_;
  Shard* shard_ = nullptr;
  AfterUpdate after_update_;
  std::vector<Place> places_;      // by worker
  std::vector<at::Tensor> spare_;  // memory for gradients
  int64_t room_ = 0;               // bytes that those in parts have needed
  GradientSum sum_;
  double loss_ = 0;  // sum of those in the sum
  SentCopies copies_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string failure_;
  ServerReport report_;
};

}  // namespace dp::detail
