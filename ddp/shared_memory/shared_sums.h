#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "ddp/shared_memory/shared_memory.h"
#include "ddp/shared_memory/sum_protocol.h"

namespace ddp::detail {

/// Sums over the ranks of a group in memory that all of them map. Has no
/// thread: `start` and `finish` do the work of this rank. All ranks start the
/// same sums in the same order and finish each of them.
///
/// Thread contract: one call at a time; `stop` may be called from any thread.
class SharedSums {
 public:
  /// @param memory  with an arena for each of the ranks.
  /// @param has_left  whether a rank has left the job. Null: none is known to.
  SharedSums(std::shared_ptr<SharedMemory> memory,
             int rank,
             std::function<bool(int rank)> has_left);
  /// Stops. Leaves memory allocated that other ranks may still read.
  ~SharedSums();

  /// Returns zeros of one dimension that `start` can sum, in memory of their
  /// own that may outlive this object; undefined if there is no memory.
  at::Tensor allocate(int64_t numel, const at::TensorOptions& options);

  /// Begins the sum of a contiguous CPU tensor. It may lie in other memory than
  /// that of `allocate`; then `finish` returns false on all ranks.
  /// @throws std::runtime_error as `finish` does: if many sums have started,
  ///   the oldest one has to end first.
  SumNumber start(const at::Tensor& tensor, std::chrono::milliseconds timeout);

  /// Completes the sum with the other ranks. Afterwards the tensor holds the
  /// sum, and no rank reads this one's memory. Returns false if nothing was
  /// summed, because the tensor of some rank is not in shared memory.
  /// @throws std::runtime_error if the tensors of the ranks differ in size or
  ///   dtype, if `timeout` is over, if a rank has left or stopped before it had
  ///   done its part, or if this rank has stopped. This rank stops then.
  bool finish(SumNumber number, std::chrono::milliseconds timeout);

  /// Ends the part of this rank: the other ranks get an error in the sums that
  /// this rank has not finished, and each further call here throws.
  void stop() noexcept;

 private:
  template <class Body>
  auto guarded(const Body& body);
  SumPlace place_of(const at::Tensor& tensor) const;
  void complete(SumNumber number, std::chrono::milliseconds timeout);
  std::string problem_of(SumNumber number) const;

  const std::shared_ptr<SharedMemory> memory_;
  const SumBoard board_;
  const int rank_;
  const std::function<bool(int rank)> has_left_;
  const bool spins_;  // this machine has a core for each rank
  std::atomic<bool> has_stopped_{false};
  std::atomic<SumNumber> done_{0};
  SumProtocol protocol_;
  std::deque<std::pair<SumNumber, at::Tensor>> tensors_;  // after done_
};

}  // namespace ddp::detail
