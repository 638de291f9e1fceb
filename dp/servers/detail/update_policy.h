#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dp::detail {

/// One update of a server's parameters.
struct Step {
  /// Workers whose gradients are averaged, ascending.
  std::vector<int> workers;
  int64_t staleness = 0;  ///< number of updates since they took the parameters
};

/// Decides which worker receives parameters and whose gradients form the next
/// update. Pure bookkeeping without waiting, tensors or sockets. Workers are
/// counted from 0.
///
/// A worker repeats `ask`, `take` (if `may_take`), its computation and `push`;
/// at the end it calls `leave`. After each call the caller adds the gradients
/// that `next_term` returns and makes the steps that `next_step` returns.
class UpdatePolicy {
 public:
  /// @param names  of the workers, for the text of `problem`
  explicit UpdatePolicy(std::vector<std::string> names);
  virtual ~UpdatePolicy() = default;
  UpdatePolicy(const UpdatePolicy&) = delete;
  UpdatePolicy& operator=(const UpdatePolicy&) = delete;

  virtual void ask(int worker) = 0;
  virtual bool may_take(int worker) const = 0;
  virtual void take(int worker) = 0;
  virtual void push(int worker) = 0;
  /// Returns the worker whose gradients are added next, or std::nullopt if they
  /// have not arrived.
  virtual std::optional<int> next_term() = 0;
  /// Returns the next update, or std::nullopt if not all of its gradients have
  /// been added.
  virtual std::optional<Step> next_step() = 0;
  /// Returns the number of workers' gradients in an update.
  virtual int terms() const = 0;
  /// Returns true if the worker's gradients would be added as soon as they
  /// arrive, before all gradients that others have yet to push.
  virtual bool is_first(int worker) const = 0;
  /// Returns true if no update happens while a worker computes or receives
  /// parameters.
  virtual bool blocks_updates_while_computing() const = 0;

  /// Records that the worker makes no further push.
  void leave(int worker);
  /// The worker makes no push for the parameters that it took last.
  virtual void drop(int worker) = 0;
  /// Records that the worker is lost. A worker that has left before has
  /// completed its part and does not cause a problem.
  void lose(int worker, const std::string& reason);

  /// Returns true if every worker has left or is lost.
  bool is_over() const;
  /// Returns the lost workers, in the order of their loss.
  const std::vector<int>& lost() const { return lost_; }
  /// Returns why this job cannot continue, or "" if it can.
  const std::string& problem() const { return problem_; }

 protected:
  enum class WorkerStatus { here, left, lost };

  virtual void on_leave(int worker) = 0;
  virtual void on_lose(int worker, const std::string& reason) = 0;
  void set_problem(const std::string& problem);
  /// Sets a problem if all workers are lost.
  /// @param reason  why the last worker was lost.
  void check_anyone_stayed(const std::string& reason);

  std::vector<std::string> names_;
  std::vector<WorkerStatus> stays_;

 private:
  std::vector<int> lost_;
  std::string problem_;
};

/// Synchronous policy: every update is the mean of one push of every worker. A
/// worker receives parameters that contain all of its pushes. The job ends if a
/// worker is lost or leaves with fewer pushes than another worker makes. The
/// loss of a worker after its last push is ignored.
std::unique_ptr<UpdatePolicy> synchronous_updates(
    std::vector<std::string> names);

/// Asynchronous policy: every push is an update of its own, at most `bound`
/// updates after its worker took the parameters; see StalenessGate. Lost
/// workers are ignored as long as another worker is present or has left.
std::unique_ptr<UpdatePolicy> asynchronous_updates(
    std::vector<std::string> names, int64_t bound);

}  // namespace dp::detail
