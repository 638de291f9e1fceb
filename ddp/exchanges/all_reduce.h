#pragma once

#include <vector>

#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/exchanges/exchange.h"

namespace ddp {

class AllReduce;

namespace detail {
/// Returns true if the exchange is an `AllReduce` or `SharedMemoryAllReduce`
/// over `ranks` ranks: it leaves the plain sum in every element of a dense
/// payload, also in elements of no gradient. A derived class may change
/// elements.
bool carries_marks(const Exchange& exchange, int ranks);
}  // namespace detail

/// Options of `AllReduce`; equal on all ranks, which is not checked.
///
/// Example: the sum of gradients, for a loss that is already a mean over the
/// samples of all ranks.
/// @code
///   auto exchange = std::make_shared<ddp::AllReduce>(
///       ddp::process_group(), ddp::AllReduceOptions().mean(false));
/// @endcode
struct AllReduceOptions {
  /// True for the mean over ranks, false for the sum.
  TORCH_ARG(bool, mean) = true;
};

/// Averages gradients over ranks with one all-reduce for each bucket. The
/// default exchange of a `Reducer`, and of `DistributedDataParallel` unless its
/// ranks can use a `SharedMemoryAllReduce`. Sparse gradients are summed row by
/// row over Gloo; NCCL has no all-reduce for them, so the model's constructor
/// throws c10::Error.
///
/// Example: adds up the time that the host spends in `finish`. On the CPU this
/// is the wait for the exchange; with NCCL the host does not wait there. All
/// ranks need the same class of exchange, even if it only measures:
/// `DistributedDataParallel` throws on all ranks if the classes differ.
/// @code
///   class Timed : public ddp::AllReduce {
///    public:
///     using ddp::AllReduce::AllReduce;
///     void finish(const ddp::GradientBucket& bucket) override {
///       const auto start = std::chrono::steady_clock::now();
///       ddp::AllReduce::finish(bucket);
///       waited += std::chrono::steady_clock::now() - start;
///     }
///     std::chrono::steady_clock::duration waited{};
///   };
/// @endcode
class AllReduce : public Exchange {
 public:
  /// @param group  the ranks of the reducer.
  /// @throws c10::Error if `group` is null.
  explicit AllReduce(c10::intrusive_ptr<c10d::Backend> group,
                     const AllReduceOptions& options = {});

  double scale(int ranks) const override;
  std::string refuses_sparse() const override;
  /// @throws c10::Error that does not name the bucket if a rank has left.
  void start(const GradientBucket& bucket) override;
  /// @throws c10::Error that names the bucket if a rank has left or the group's
  ///   time-out is over. With NCCL the next pass throws instead.
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override { works_.clear(); }

 protected:
  /// Starts the sum of a payload over the ranks, in its own memory. The default
  /// is the group's all-reduce.
  virtual c10::intrusive_ptr<c10d::Work> start_sum(const at::Tensor& payload);

  /// The group of the sum.
  c10d::Backend& group() const { return *group_; }

 private:
  friend bool detail::carries_marks(const Exchange& exchange, int ranks);

  c10::intrusive_ptr<c10d::Backend> group_;
  AllReduceOptions options_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;  // by bucket
};

}  // namespace ddp
