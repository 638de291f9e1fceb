#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/exchanges/exchange.h"

namespace ddp {

/// A function as exchange: what PyTorch's register_comm_hook takes. It is
/// called once for each bucket of each pass, when the bucket is full, and
/// returns at once with what the end of the pass waits for. As in PyTorch it
/// gets gradients that nothing has divided; what state it keeps, it captures.
///
/// Example, an all-reduce that counts its buckets, then the same with something
/// done when it has ended:
/// @code
///   auto buckets = std::make_shared<int64_t>(0);
///   auto group = ddp::process_group();
///   auto exchange = std::make_shared<ddp::HookExchange>(
///       [=](const ddp::GradientBucket& bucket) {
///         ++*buckets;
///         bucket.payload.div_(group->getSize());
///         std::vector<at::Tensor> tensors{bucket.payload};
///         return group->allreduce(tensors);
///       });
///   auto clamped = std::make_shared<ddp::HookExchange>(
///       [=](const ddp::GradientBucket& bucket) {
///         std::vector<at::Tensor> tensors{bucket.payload};
///         auto sum = group->allreduce(tensors)->getFuture();
///         return sum->then(
///             [size = group->getSize()](
///                 c10::ivalue::Future& future) -> c10::IValue {
///               auto mean = future.value().toTensorVector()[0];
///               return mean.div_(size).clamp_(-1, 1);
///             },
///             c10::TensorType::get());
///       });
///   ddp::DistributedDataParallel model(
///       net, ddp::DistributedDataParallelOptions().exchange(exchange));
/// @endcode
///
/// What a future calls must hold no process group: it is let go on the group's
/// own thread, which ends the process where that was the last reference.
///
/// Unlike a class over `Exchange` it has nothing to do at the end of the pass
/// but to wait; what `Exchange` says of order, threads and streams holds for
/// it. All ranks are to give one that makes the same calls. Sparse payloads
/// come to it, too.
class HookExchange : public Exchange {
 public:
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;
  using Work = c10::intrusive_ptr<c10d::Work>;
  /// One of three:
  /// - a work, after which the payload holds the result;
  /// - a future of a tensor, or of a list of one as `Work::getFuture` gives;
  /// - a tensor, which is the result, or is it when the stream has made it.
  /// A tensor that is not the payload is copied into it, and must have its
  /// sizes, dtype, device and layout.
  using Result = std::variant<Work, Future, at::Tensor>;
  using Hook = std::function<Result(const GradientBucket&)>;

  /// @throws c10::Error when the function is empty.
  explicit HookExchange(Hook hook);

  double scale(int ranks) const override;
  /// A function may leave a rank its own: nobody compares the ranks' steps.
  bool is_replica_consistent(int /*ranks*/) const override { return false; }
  std::string refuses_sparse() const override;
  void start(const GradientBucket& bucket) override;
  /// @throws c10::Error that names the bucket and its parameters when the
  ///   result is null, is not like the payload, or has failed; where a rank has
  ///   left the job, that one. The ranks end the pass together.
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override { results_.clear(); }

 private:
  Hook hook_;
  std::vector<Result> results_;  // by bucket
};

}  // namespace ddp
