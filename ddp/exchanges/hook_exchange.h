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

/// Adapts a function to an exchange, like PyTorch's register_comm_hook. The
/// hook is called once for each bucket of each pass, when the bucket is full.
/// The hook returns at once; the end of the pass waits for the result. As in
/// PyTorch the gradients have not been divided. A hook does not learn how many
/// ranks have inputs left in a `Join`, so divide_by_initial_world_size(false)
/// does not change its result. A hook keeps its state in its captures.
///
/// Example: an all-reduce that counts its buckets, and an all-reduce with a
/// clamped result.
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
/// A callback of a future must not hold a process group. The callback is
/// destroyed on the group's own thread, and the process ends if the last
/// reference to the group is destroyed there.
///
/// At the end of the pass this class only waits for the results; derive from
/// `Exchange` to do other work there. The rules of `Exchange` about order,
/// threads and streams apply. All ranks must use hooks that make the same
/// calls. Hooks receive sparse payloads too. An exception of a hook counts as
/// an exception of `Exchange::start`.
class HookExchange : public Exchange {
 public:
  /// A future of LibTorch.
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;
  /// A running collective.
  using Work = c10::intrusive_ptr<c10d::Work>;
  /// Result of a hook, one of three:
  /// - a work, after which the payload holds the result;
  /// - a future of a tensor, or of a list with one tensor as `Work::getFuture`
  ///   returns it;
  /// - a tensor that holds the result, or will hold it once the current stream
  ///   has computed it.
  ///
  /// A tensor other than the payload is copied into the payload, and must have
  /// its sizes, dtype, device and layout.
  using Result = std::variant<Work, Future, at::Tensor>;
  /// Function that starts the exchange of a bucket.
  using Hook = std::function<Result(const GradientBucket&)>;

  /// @throws c10::Error if the function is empty.
  explicit HookExchange(Hook hook);

  double scale(int ranks) const override;
  /// Returns an empty text.
  std::string refuses_sparse() const override;
  void start(const GradientBucket& bucket) override;
  /// @throws c10::Error that names the bucket if the result is null, does not
  ///   match the payload, or failed. If a rank has left the job, the error
  ///   names that rank. With NCCL a failed collective, or a rank that has left,
  ///   is an error of a later collective, usually of the next pass.
  void finish(const GradientBucket& bucket) override;
  void abandon() noexcept override { results_.clear(); }

 private:
  Hook hook_;
  std::vector<Result> results_;  // by bucket
};

}  // namespace ddp
