#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dp::detail {

/// One update of a server's parameters.
struct Step {
  std::vector<int> workers;  ///< whose gradients are averaged, ascending
  int64_t staleness = 0;     ///< updates since they took the parameters
};

/// Decides which worker gets parameters and whose gradients make the next
/// update. Pure bookkeeping: it never waits, and knows neither tensors nor
/// sockets. Workers are counted from 0.
///
/// A worker asks, takes when it may, computes, pushes, and so on; at the end it
/// leaves. After each call the caller adds up the gradients that `next_term`
/// gives, and makes the steps that `next_step` gives.
class UpdatePolicy {
 public:
  /// @param names  of the workers, for `problem`
  explicit UpdatePolicy(std::vector<std::string> names);
  virtual ~UpdatePolicy() = default;
  UpdatePolicy(const UpdatePolicy&) = delete;
  UpdatePolicy& operator=(const UpdatePolicy&) = delete;

  virtual void ask(int worker) = 0;
  virtual bool may_take(int worker) const = 0;
  virtual void take(int worker) = 0;
  virtual void push(int worker) = 0;
  /// Whose gradients are the next to be added up, once they have come.
  virtual std::optional<int> next_term() = 0;
  /// The next update, once all of its gradients have been added up.
  virtual std::optional<Step> next_step() = 0;
  /// How many gradients make an update.
  virtual int terms() const = 0;
  /// True when the worker's gradients would be added up as soon as they came,
  /// before any that others have yet to push.
  virtual bool is_first(int worker) const = 0;
  /// True when no update comes while a worker computes or takes parameters.
  virtual bool keeps_still() const = 0;

  /// The worker will push no more.
  void leave(int worker);
  /// The worker pushes nothing for what it took last.
  virtual void drop(int worker) = 0;
  /// The worker is gone for good. One that has left has done its part.
  void lose(int worker, const std::string& reason);

  /// True when every worker has left or is lost.
  bool is_over() const;
  /// Those that are gone, in the order in which they went.
  const std::vector<int>& lost() const { return lost_; }
  /// Why this job cannot go on; empty when it can.
  const std::string& problem() const { return problem_; }

 protected:
  enum class Stay { here, left, lost };

  virtual void on_leave(int worker) = 0;
  virtual void on_lose(int worker, const std::string& reason) = 0;
  void set_problem(const std::string& problem);
  /// A problem when all are lost.
  /// @param reason  why the last one is.
  void check_anyone_stayed(const std::string& reason);

  std::vector<std::string> names_;
  std::vector<Stay> stays_;

 private:
  std::vector<int> lost_;
  std::string problem_;
};

/// Every update is the mean of one push of every worker; a worker gets
/// parameters that contain all of its pushes. A worker that is gone or leaves
/// with fewer pushes than another makes ends the job; one that has made its
/// last push is not missed.
std::unique_ptr<UpdatePolicy> synchronous_updates(
    std::vector<std::string> names);

/// Every push is an update of its own, at most `bound` updates after its worker
/// took the parameters; see StalenessGate. A worker that is gone is done
/// without, as long as one is there or has left.
std::unique_ptr<UpdatePolicy> asynchronous_updates(
    std::vector<std::string> names, int64_t bound);

}  // namespace dp::detail
