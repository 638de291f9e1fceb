#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/detail/reducer/grad_hooks.h"
#include "ddp/detail/reducer/gradient_buckets.h"
#include "ddp/detail/reducer/missing_policy.h"
#include "ddp/exchange.h"
#include "ddp/named_parameter.h"
#include "ddp/options.h"

namespace ddp::detail {

/// What `Reducer` does; see there. Says when things happen in a backward pass;
/// what happens is said by its parts: the buckets' memory, the exchange, and
/// the policy on missing gradients.
///
/// - idle: a gradient stays local and is noted; `arm` -> armed; the gradient of
///   a watched output opens a pass.
/// - armed: the gradient of a parameter opens a pass, too.
/// - recording, the pass until the plan is agreed on: gradients go into their
///   buckets, their order is noted. At the end rank 0 plans, all buckets start
///   and finish -> idle.
/// - reducing, every later pass: full buckets start. At the end the rest starts
///   and all finish -> idle.
///
/// In a pass `arm` does nothing; where an exception has left one, it throws.
class ReducerImpl : public std::enable_shared_from_this<ReducerImpl> {
 public:
  ReducerImpl(std::vector<NamedParameter> parameters,
              c10::intrusive_ptr<c10d::Backend> group,
              const DistributedDataParallelOptions& options);

  void arm();
  void watch(const at::Tensor& output);
  const BucketPlan& plan() const { return memory_.plan(); }

 private:
  enum class Phase { idle, armed, recording, reducing };

  bool is_open() const { return phase_ >= Phase::recording; }
  void begin();
  void open();
  void on_grad_ready(size_t index);
  void close();
  std::vector<size_t> add_missing();
  void agree_on_plan();
  void start_full_buckets();
  void finish_buckets();
  void reset();

  c10::intrusive_ptr<c10d::Backend> group_;
  std::shared_ptr<Exchange> exchange_;
  GradientBuckets memory_;
  std::unique_ptr<MissingPolicy> missing_;
  bool keeps_memory_;
  std::mutex mutex_;
  Phase phase_ = Phase::idle;
  Phase next_pass_;            // recording until the plan is agreed on
  std::vector<size_t> order_;  // in which gradients come, while recording
  size_t next_ = 0;            // bucket to start next
  std::unique_ptr<GradHooks> hooks_;  // last: goes first
};

}  // namespace ddp::detail
