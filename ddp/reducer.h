#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/detail/reducer/bucket_plan.h"
#include "ddp/detail/reducer/failure_flag.h"
#include "ddp/detail/reducer/grad_hooks.h"
#include "ddp/detail/reducer/gradient_buckets.h"
#include "ddp/options.h"

namespace ddp {

/// A parameter and the name that errors call it by.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  /// Its gradients are sparse tensors, as of an Embedding with sparse(true).
  bool sparse = false;
};

/// Averages gradients over ranks while the backward pass still runs.
///
/// Each gradient goes, divided by the number of ranks, into its bucket as soon
/// as autograd has it; a full bucket is all-reduced at once, in the same order
/// on every rank; the end of the backward pass waits for all of them. When
/// `backward()` returns, every `.grad` holds the average.
///
/// `DistributedDataParallel` is the way to use it; alone it serves a training
/// loop that has no single module:
/// @code
///   ddp::Reducer reducer(parameters, ddp::process_group());
///   reducer.arm();
///   auto loss = ...;
///   reducer.watch(loss);
///   loss.backward();  // gradients are averaged now
/// @endcode
///
/// That `.grad` is a piece of its bucket: nothing is copied back. A gradient
/// that is still held when the next pass begins, though `.grad` has let it go,
/// stays as it is: the buckets get new memory then.
///
/// The first reduced pass only records the order in which rank 0's gradients
/// come; at its end the buckets are rebuilt in that order (a broadcast) and
/// reduced. So every step adds up in the same order, the first one of a
/// resumed training too. With find_unused_parameters nothing is rebuilt.
///
/// A backward pass is reduced when `arm` came before it or when it starts from
/// a watched tensor; every other one accumulates on this rank alone.
///
/// Thread contract: `arm` and `watch` from one thread. Hooks may come from
/// autograd's threads.
///
/// Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data
/// Parallel Training", VLDB 2020; c10d::Reducer. Unlike it, a missing gradient
/// is an error of the backward pass that missed it, on every rank.
class Reducer {
 public:
  /// @param parameters  leaves that require a gradient, in an order that is the
  ///   same on all ranks; each tensor once. Sparse gradients need Gloo: NCCL
  ///   has no all-reduce for them.
  /// @param group  the ranks; must live at least as long as a step.
  /// @throws c10::Error when there is no parameter or one needs no gradient.
  Reducer(std::vector<NamedParameter> parameters,
          c10::intrusive_ptr<c10d::Backend> group,
          const DistributedDataParallelOptions& options = {});
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Says that the next backward pass is to be reduced.
  /// @throws c10::Error when an exception left the pass before unfinished.
  void arm();

  /// Makes every backward pass that starts from `output` (or from what is
  /// computed of it) a reduced one. Tensors without history are ignored.
  void watch(const at::Tensor& output);

  /// The bucket of each parameter and their order now: indices into the
  /// constructor's parameters.
  detail::BucketPlan plan() const;

 private:
  enum class Phase { idle, armed, reducing };

  void begin();
  void on_grad_ready(size_t index);
  void launch_full_buckets();
  void finalize();
  std::vector<size_t> missing() const;
  void complete(const std::vector<size_t>& absent);
  void rebuild();
  void wait_all();
  [[noreturn]] void report(const std::vector<size_t>& absent);
  std::vector<size_t> used_by_some_rank(const std::vector<size_t>& absent);
  void reset();

  c10::intrusive_ptr<c10d::Backend> group_;
  DistributedDataParallelOptions options_;
  detail::GradientBuckets memory_;
  std::optional<detail::FailureFlag> flag_;
  std::mutex mutex_;
  Phase phase_ = Phase::idle;
  size_t next_ = 0;  // bucket to launch next
  // The order in which gradients come, until the buckets are rebuilt by it.
  std::optional<std::vector<size_t>> order_;
  // Hooks of outputs that outlive the reducer find it gone.
  std::shared_ptr<Reducer*> self_ = std::make_shared<Reducer*>(this);
  std::unique_ptr<detail::GradHooks> hooks_;  // last: goes first
};

}  // namespace ddp
