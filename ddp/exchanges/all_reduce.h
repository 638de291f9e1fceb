#pragma once

#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/exchange.h"

namespace ddp {

/// The mean over ranks by an all-reduce for each bucket: what
/// `DistributedDataParallel` does unless it is told otherwise. Sparse gradients
/// are added up row by row, over Gloo; NCCL has no all-reduce for them.
class AllReduce : public Exchange {
 public:
  /// @param group  the ranks; those of the reducer.
  explicit AllReduce(c10::intrusive_ptr<c10d::Backend> group);

  bool sums_every_element() const override;
  std::string refuses_sparse() const override;
  void start(const GradientBucket& bucket) override;
  /// @throws c10::Error that names the bucket when a rank has left.
  void finish(const GradientBucket& bucket) override;

 private:
  c10::intrusive_ptr<c10d::Backend> group_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;  // by bucket
};

}  // namespace ddp
