#pragma once

#include <atomic>
#include <memory>

namespace ddp {

namespace detail {
/// Number of guards of a model, shared with them.
using Pauses = std::shared_ptr<std::atomic<int>>;
}  // namespace detail

/// Disables gradient averaging for a model or a `Reducer` while the guard
/// exists: gradients that are accumulated meanwhile stay this rank's own. The
/// first backward pass after the guard averages them with its own, so gradient
/// accumulation over k batches needs one communication instead of k. The result
/// is the mean over ranks of the sum over the passes: divide each loss by k for
/// the gradient of one batch of k parts.
///
/// The last pass before each step is outside of the guard, also in a shorter
/// window at the end of an epoch: otherwise the optimizer of each rank steps by
/// the rank's own gradients, and the ranks' parameters become different.
///
/// The guard counts during `backward()`, wherever the forward ran. Guards exist
/// on all ranks alike, or the passes inside are local to a rank (a validation
/// with gradients on rank 0). Guards can be nested. Use them on the model's
/// thread. A guard may outlive the model. It is an error to freeze a parameter
/// between a pass under the guard and the pass that averages, unless its
/// `.grad` has been reset.
///
/// Example:
/// @code
///   {
///     ddp::NoSyncGuard no_sync(*model);
///     loss(model->forward(first_half)).div(2).backward();
///   }
///   loss(model->forward(second_half)).div(2).backward();  // sends both
/// @endcode
///
/// Source: torch.nn.parallel.DistributedDataParallel.no_sync, which counts
/// where the forward runs.
class NoSyncGuard {
 public:
  /// Disables the averaging for a `DistributedDataParallel` or a `Reducer`.
  template <typename Model>
  explicit NoSyncGuard(Model& model) : pauses_(model.pauses()) {
    ++*pauses_;
  }
  ~NoSyncGuard() { --*pauses_; }
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  detail::Pauses pauses_;
};

}  // namespace ddp
