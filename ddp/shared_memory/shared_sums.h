#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "ddp/shared_memory/shared_memory.h"
#include "ddp/shared_memory/sum_protocol.h"

namespace ddp::detail {

/// Sums over the ranks of a group in memory that all of them map. Has no
/// thread: `start` and `finish` do the work of this rank. All ranks start the
/// same sums in the same order and finish each of them. Does not detect dead
/// ranks: the owner of the group calls `stop` at the group's end.
///
/// Thread contract: one call at a time; `stop` may be called from any thread.
class SharedSums {
 public:
  /// @param memory  with an arena for each of the ranks.
  SharedSums(std::shared_ptr<SharedMemory> memory, int rank);
  /// Stops. Leaves memory allocated that other ranks may still read.
  ~SharedSums();

  /// Returns zeros of one dimension that `start` can sum, in memory of their
  /// own that may outlive this object; undefined if there is no memory.
  at::Tensor allocate(int64_t numel, const at::TensorOptions& options);
  /// Whether a tensor lies in memory of `allocate`.
  bool has(const at::Tensor& tensor) const;

  const std::shared_ptr<SharedMemory>& memory() const { return memory_; }

  /// Begins the sum of a contiguous tensor of `allocate`, without waiting for
  /// other ranks: of many sums in progress the last ones wait for room.
  /// @param collective  number of the sum in a group of the job; equal on all
  ///   ranks.
  /// @param is_scattered  the tensor has a part for each rank, in their order,
  ///   of equal multiples of 64 elements. This rank gets the sum of its own
  ///   part; the other parts have no meaning afterwards.
  /// @throws std::runtime_error if the tensors of the ranks differ in size or
  ///   dtype, or the numbers differ, or if this rank has stopped. This rank
  ///   stops then.
  SumNumber start(const at::Tensor& tensor,
                  uint64_t collective = 0,
                  bool is_scattered = false);

  /// Completes the sum with the other ranks. Afterwards the tensor holds the
  /// sum, and no rank reads this one's memory.
  /// @throws std::runtime_error as `start`, if `timeout` is over, or if a rank
  ///   has stopped before it had done its part. This rank stops then.
  void finish(SumNumber number, std::chrono::milliseconds timeout);

  /// Ends the part of this rank: the other ranks get an error in the sums that
  /// this rank has not finished, and each further call here throws.
  void stop() noexcept;

 private:
  template <class Body>
  auto guarded(const Body& body);
  std::optional<uint64_t> offset_of(const at::Tensor& tensor) const;
  void advance();
  void complete(SumNumber number, std::chrono::milliseconds timeout);
  std::string problem_of(SumNumber number) const;

  const std::shared_ptr<SharedMemory> memory_;
  const SumBoard board_;
  const int rank_;
  const bool spins_;  // this machine has a core for each rank
  std::atomic<bool> has_stopped_{false};
  std::atomic<SumNumber> done_{0};
  SumProtocol protocol_;
  struct Sum {
    at::Tensor tensor;
    uint64_t collective;
    bool is_scattered;
  };
  std::deque<Sum> sums_;  // of the sums after done_
};

}  // namespace ddp::detail
