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

#include "dp/servers/detail/flat_tensors.h"
#include "dp/servers/detail/gradients.h"
#include "dp/servers/detail/shard.h"
#include "dp/servers/detail/update_policy.h"
#include "dp/servers/parameter_server.h"

namespace dp::detail {

/// Thrown by calls that wait, if the job has ended.
struct JobEnded : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Shared state of a server's threads: one thread per worker, and one that
/// makes the updates. A lock guards the policy and the memory. Sums, steps and
/// `after_update` run without the lock. Once the job has ended (by `fail` or by
/// the policy), calls that wait throw JobEnded and all others do nothing.
///
/// The memory does not grow with the number of workers: it consists of
/// `gradients_held` sets of gradients and their sum.
///
/// Thread contract: any thread may call. All calls for one worker come from one
/// thread; `run` and `make_updates` are called from one thread.
class Coordinator {
 public:
  /// @param parameters  parameters whose gradients are pushed.
  /// @param gradients_held  number of workers' gradients held at a time, in
  ///   addition to their sum.
  Coordinator(std::unique_ptr<UpdatePolicy> policy,
              const std::vector<at::Tensor>& parameters,
              int workers,
              int gradients_held);

  /// Sets the shard to serve, which must outlive the calls of this object. Call
  /// `serve` or `fail` before any other function.
  /// @param updates  number of updates that the shard already contains.
  /// @param after_update  called after each update with the number of updates
  ///   that the shard contains then.
  using AfterUpdate = std::function<void(int64_t updates)>;
  void serve(Shard& shard,
             int64_t updates = 0,
             AfterUpdate after_update = nullptr);

  /// Makes updates until `close` is called or the job has ended.
  void run();
  /// Makes all updates that are due. Parameters are not sent meanwhile. An
  /// exception of an update ends the job.
  void make_updates();
  /// Makes `run` return once its work is done. Call when all worker threads
  /// have finished.
  void close();

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// Size of the flat parameters in bytes, with padding.
  int64_t flat_bytes() const { return shard_->flat().numel(); }

  /// Waits for memory for the gradients of a worker. The caller fills the
  /// memory until it calls `push`. Returns std::nullopt if no memory is free
  /// after `patience`. The worker for whose gradients the others wait is always
  /// served.
  std::optional<at::Tensor> memory_for(int worker,
                                       std::chrono::milliseconds patience);
  /// Passes on the gradients in the memory of `memory_for` for an update.
  void push(int worker, const Presence& presence, double loss);
  /// The worker makes no push for the parameters that it took last; other
  /// workers do not wait for it.
  void drop(int worker);

  /// Queues the worker for parameters.
  void ask(int worker);
  /// Waits until the worker may take parameters.
  /// @returns their version, or std::nullopt if the worker may not take them
  ///   after `patience`.
  std::optional<int64_t> take(int worker, std::chrono::milliseconds patience);
  /// Returns at most kPieceBytes bytes of the parameters from `begin` on, for a
  /// worker that has taken them. Asynchronous: returns a copy of the current
  /// values, so that a slow receiver delays no update; later pieces may contain
  /// later updates. Returns std::nullopt if an update is still running after
  /// `patience`.
  std::optional<at::Tensor> piece(int64_t begin,
                                  std::chrono::milliseconds patience);

  /// The worker makes no further push.
  void leave(int worker);
  /// As `take`, for the final parameters: waits until all workers have left or
  /// are lost.
  std::optional<int64_t> acquire_final(std::chrono::milliseconds patience);

  /// The worker is lost.
  void lose(int worker, const std::string& reason);
  /// Ends the job. An empty reason means that a rank failed without giving a
  /// reason.
  void fail(const std::string& reason);

  /// Returns why the job has ended early, or "" if it has not.
  std::string failure() const;
  ServerReport report() const;

 private:
  using Lock = std::unique_lock<std::mutex>;

  /// State of one worker on this server.
  struct Place {
    // From `memory_for` until they are added.
    std::optional<FlatTensors> gradients;
    bool has_pushed = false;  // the gradients have arrived
    Presence presence;
    double loss = 0;
  };

  template <class Ready>
  bool wait(Lock& lock, std::chrono::milliseconds patience, const Ready& ready);
  template <class Work>
  void make_unlocked(Lock& lock, const Work& work);
  Place& place(int worker) { return places_[static_cast<size_t>(worker)]; }
  void note_change();
  void take_back(int worker);
  bool may_hold(int worker) const;
  void add(Lock& lock, int worker);
  void make(Lock& lock, const Step& step);
  void end(const std::string& reason);

  std::vector<at::Tensor> parameters_;
  const size_t gradients_held_;
  std::unique_ptr<UpdatePolicy> policy_;
  Shard* shard_ = nullptr;
  AfterUpdate after_update_;
  std::vector<Place> places_;       // by worker
  std::vector<FlatTensors> spare_;  // unused memory for gradients
  GradientSum sum_;                 // used by the update thread only
  double loss_ = 0;                 // sum of the losses of the terms in `sum_`
  bool has_work_ = false;           // updates may be due
  bool is_updating_ = false;        // an update runs without the lock
  bool is_closed_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string failure_;
  ServerReport report_;
};

}  // namespace dp::detail
