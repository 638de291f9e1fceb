#pragma once

#include <optional>
#include <vector>

#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/exchanges/exchange.h"

namespace ddp {

/// Options of `AllReduce`.
///
/// Example, the sum of gradients, for a loss that is a mean over all ranks'
/// samples already:
/// @code
///   auto exchange = std::make_shared<ddp::AllReduce>(
///       ddp::process_group(), ddp::AllReduceOptions().mean(false));
/// @endcode
struct AllReduceOptions {
  /// False: the sum over ranks.
  TORCH_ARG(bool, mean) = true;
  /// What gradients are divided by before they are added up. Null: by all that
  /// they are to be divided by, which is free. In half precision a sum of
  /// undivided gradients may be inf, and small ones divided by many ranks are
  /// zero; about the square root of the number of ranks keeps clear of both.
  /// The rest is divided out of the sum: one more pass over the gradients, and
  /// an all-reduce of a few elements for what rides with them else.
  TORCH_ARG(std::optional<double>, predivide) = std::nullopt;
};

/// The mean over ranks by an all-reduce for each bucket: what
/// `DistributedDataParallel` does unless it is told otherwise. Sparse gradients
/// are added up row by row, over Gloo; NCCL has no all-reduce for them.
class AllReduce : public Exchange {
 public:
  /// @param group  the ranks; those of the reducer, or some of them in a
  ///   `SwitchExchange`: then the mean is over these.
  /// @throws c10::Error when predivide is not positive.
  explicit AllReduce(c10::intrusive_ptr<c10d::Backend> group,
                     const AllReduceOptions& options = {});

  double scale(int ranks) const override;
  int min_group_size() const override { return group_->getSize(); }
  bool sums_every_element() const override;
  std::string refuses_sparse() const override;
  void start(const GradientBucket& bucket) override;
  /// @throws c10::Error that names the bucket when a rank has left.
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override { works_.clear(); }

 private:
  double share(int ranks) const;
  double rest() const;

  c10::intrusive_ptr<c10d::Backend> group_;
  AllReduceOptions options_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;  // by bucket
};

}  // namespace ddp
