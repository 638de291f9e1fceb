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

/// Thrown to those who wait when the job has ended.
struct JobEnded : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Where the threads of a server meet: one for each worker, and one that makes
/// the updates. A lock guards the policy and the memory; sums, steps and
/// `after_update` run without it. Once the job has ended (`fail`, or the policy
/// says so), calls that wait throw JobEnded and the others do nothing.
///
/// Its memory does not grow with the workers: so many gradients and their sum.
///
/// Thread contract: any thread, each worker's calls from one; `run` and
/// `make_updates` from one.
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

  /// Makes updates until `close`, or until the job has ended.
  void run();
  /// Makes the updates that are due. The parameters are not handed out
  /// meanwhile. An exception of an update ends the job.
  void make_updates();
  /// No worker has a thread any more.
  void close();

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// Bytes of the parameters in all pieces.
  int64_t flat_bytes() const { return shard_->flat().numel(); }

  /// Waits for memory for the gradients of a worker, which until `push` is the
  /// caller's to fill. None when there still is none after `patience`. The
  /// worker whose gradients the others wait for always gets some.
  std::optional<at::Tensor> memory_for(int worker,
                                       std::chrono::milliseconds patience);
  void push(int worker, const Presence& presence, double loss);
  /// The worker pushes nothing for what it took last: the others do not wait
  /// for it.
  void drop(int worker);

  /// Says that the worker wants parameters.
  void ask(int worker);
  /// Waits until it may have them; none when it still may not after `patience`.
  /// @returns their version.
  std::optional<int64_t> take(int worker, std::chrono::milliseconds patience);
  /// Bytes of the parameters from `begin` on, kPieceBytes at most, for a worker
  /// that has taken them. Asynchronous: a copy of what they are now, so that a
  /// worker that is slow to receive holds up nobody; later pieces may contain
  /// later updates. None while an update is made, after `patience`.
  std::optional<at::Tensor> piece(int64_t begin,
                                  std::chrono::milliseconds patience);

  /// The worker pushes no more.
  void leave(int worker);
  /// As `take`, for the last parameters: waits until no worker is there.
  std::optional<int64_t> take_last(std::chrono::milliseconds patience);

  /// The worker is gone.
  void lose(int worker, const std::string& reason);
  /// Ends the job. The reason may be "": then nobody has said why.
  void fail(const std::string& reason);

  /// Why the job has ended early; empty when it has not.
  std::string failure() const;
  ServerReport report() const;

 private:
  using Lock = std::unique_lock<std::mutex>;

  /// What one worker has of this server's memory.
  struct Place {
    std::optional<FlatTensors> gradients;  // from `memory_for` until added up
    bool has_pushed = false;               // they have come
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
  std::vector<FlatTensors> spare_;  // memory for gradients
  GradientSum sum_;                 // of the thread that makes updates
  double loss_ = 0;                 // sum of those in the sum
  bool has_work_ = false;           // there may be updates to make
  bool is_updating_ = false;        // without the lock
  bool is_closed_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string failure_;
  ServerReport report_;
};

}  // namespace dp::detail
