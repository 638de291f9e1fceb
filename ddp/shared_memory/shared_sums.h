#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/shared_memory/shared_memory.h"
#include "ddp/shared_memory/sum_protocol.h"

namespace ddp::detail {

/// Sums over the ranks of a group in memory that all of them map, or, if the
/// ranks are on several hosts, in the memory of each host and over the hosts.
/// Has no thread: `start` and `finish` do the work of this rank. All ranks
/// start the same sums in the same order and finish each of them.
///
/// Thread contract: one thread at a time; `abort` and `is_working` may be
/// called from any thread.
class SharedSums {
 public:
  /// @param ranks  ranks of the group that are on this host, ascending.
  /// @param rank  index of this rank among them, as in `memory`.
  /// @param has_left  whether another rank of the group has left the job.
  SharedSums(std::shared_ptr<SharedMemory> memory,
             std::vector<int> ranks,
             int rank,
             std::function<bool(int rank)> has_left,
             const OtherHosts& others = {});
  /// Leaves memory allocated that other ranks may still read.
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
  /// @throws std::runtime_error if the tensors of the ranks of this host differ
  ///   in size or dtype (between hosts they have to be equal), if `timeout` is
  ///   over, if a rank has left, died or stopped before it had done its part,
  ///   or after `abort`. This rank then stops: the other ranks get an error in
  ///   this sum or the next one, and each further call throws.
  bool finish(SumNumber number, std::chrono::milliseconds timeout);

  /// Copies the values of a contiguous CPU tensor of rank `source` into the
  /// other ranks' tensors, piece by piece, and returns when all have them. The
  /// order among sums counts. Returns false if nothing was copied, because
  /// `source` got no shared memory.
  /// @pre `is_one_host`.
  /// @throws std::runtime_error as `finish`.
  bool copy_from(int source,
                 const at::Tensor& tensor,
                 std::chrono::milliseconds timeout);

  bool is_one_host() const { return !stop_others_; }

  /// Whether a sum has started and not finished.
  bool is_working() const { return working_ > 0 && !has_stopped_; }

  /// Ends the waits of this rank, and the other ranks' waits for this rank.
  void abort() noexcept;

 private:
  template <class Body>
  auto guarded(const Body& body);
  void stop() noexcept;
  void tell_end(SumBoard::End end) noexcept;
  bool copy_pieces_from(int source,
                        const at::Tensor& bytes,
                        std::chrono::milliseconds timeout);
  SumPlace place_of(const at::Tensor& tensor) const;
  bool has_pieces();
  void make_room(std::chrono::milliseconds timeout);
  void begin(SumNumber number, const at::Tensor& tensor);
  bool end(SumNumber number, std::chrono::milliseconds timeout);
  void complete(SumNumber number, std::chrono::milliseconds timeout);
  void advance();
  void wait_for_ranks(SumNumber number,
                      std::chrono::steady_clock::time_point end);
  bool is_missing(int rank, SumNumber number) const;
  int count() const { return static_cast<int>(ranks_.size()); }
  int group_rank(int rank) const { return ranks_[static_cast<size_t>(rank)]; }

  const std::shared_ptr<SharedMemory> memory_;
  const SumBoard board_;
  const std::vector<int> ranks_;             // of the group
  const int rank_;                           // index among them
  const std::function<void()> stop_others_;  // null: there is one host
  const std::function<bool(int rank)> has_left_;
  const bool spins_;
  std::atomic<bool> is_aborted_{false};
  std::atomic<bool> has_stopped_{false};
  std::atomic<int64_t> working_{0};
  std::mutex mutex_;
  SumProtocol protocol_;
  std::deque<std::pair<SumNumber, at::Tensor>> tensors_;  // not done yet
  at::Tensor pieces_;  // shared memory for two pieces of a copy
};

}  // namespace ddp::detail
