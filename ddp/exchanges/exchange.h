#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include "ddp/checkpoint/state/stateful.h"
#include "ddp/job/named_parameter.h"

namespace ddp {

namespace detail {
class ExchangeClaim;
}

/// A group of gradients that the ranks exchange in one operation; the argument
/// of `Exchange::start` and `Exchange::finish`.
struct GradientBucket {
  size_t index = 0;  ///< position in the plan; buckets start in this order
  size_t count = 1;  ///< number of buckets in the plan

  /// The gradients, already multiplied by `Exchange::scale`. Two kinds:
  /// - dense: one dimension, contiguous, one dtype and device. The gradients
  ///   lie one after the other. In the last bucket of an `AllReduce` a few
  ///   elements follow, in which the ranks compare the pass. The number of
  ///   elements is the same on every rank.
  /// - sparse: one sparse gradient, a coalesced COO tensor. Each rank has its
  ///   own rows, and no rows if the rank has no gradient.
  at::Tensor payload;

  /// The parameters of these gradients, in the order of the payload.
  c10::ArrayRef<NamedParameter> parameters;

  /// Returns true for the last bucket of the plan.
  bool is_last() const { return index + 1 == count; }

  /// Returns text for messages: "gradient bucket 1 of 2", counted from 1.
  std::string text() const;

  /// Returns the gradient of each parameter: tensors in the payload's memory
  /// with the parameter's shape, or the sparse payload. Creates tensors, so use
  /// it only in exchanges that work on matrices; elementwise exchanges use the
  /// payload directly.
  std::vector<at::Tensor> gradients() const;
};

/// Defines how ranks combine their gradients: the processing of a bucket
/// between the arrival of its last gradient and the optimizer's step. The
/// reducer decides when, the exchange decides how. The default is `AllReduce`.
/// For CPU ranks on one host a wrapper's default is `SharedMemoryAllReduce`.
/// Other exchanges compress the gradients, call a hook or measure time. Set an
/// exchange with `DistributedDataParallelOptions::exchange`, or pass it to a
/// `Reducer`.
///
/// In a world of one only an exchange that the program has set is called. In a
/// reduced backward pass (not under a `NoSyncGuard`) every rank calls `start`
/// once and then `finish` once for each bucket. A rank without inputs left in a
/// `Join` does the same for each pass of the other ranks:
/// @verbatim
///   hook of the last gradient of bucket 0 -> start(0)    while the pass runs
///   hook of the last gradient of bucket 1 -> start(1)
///   end of the pass                       -> finish(0), finish(1)
///   backward() returns
/// @endverbatim
/// The place of a parameter that gets no gradient in the pass holds the scaled
/// `.grad` of earlier local passes, or zeros if there is none, so every rank
/// makes the same calls. An exchange may keep state between `start` and
/// `finish` and between passes (works, error feedback, times). One object
/// therefore serves one reducer or one other exchange. A second owner throws
/// c10::Error while the first owner lives.
///
/// Contract:
/// - `start` and `finish` are called in the order of `index`, which is the same
///   on all ranks. If an exchange makes its collectives in this order, the
///   collectives of all ranks match. `finish(0)` may come after all calls of
///   `start`.
/// - After `finish` the payload holds this rank's result. The payload becomes
///   `.grad` without a copy, so the result must lie in the payload's own
///   memory. A sparse result must be in the payload tensor itself (by `copy_`,
///   or as an all-reduce leaves it). An exchange that leaves only a part of the
///   payload valid, as a reduce-scatter does, tells its optimizer which part.
/// - The payload may have other memory in the next pass: keep no reference to
///   it after `finish`. The plan (the assignment of gradients to buckets) is
///   fixed before the first `start` and does not change.
/// - Threads and streams: `start` runs when its bucket and all earlier buckets
///   are full, on the thread that has computed the last gradient: on the CPU
///   usually the thread that called `backward()`, on a GPU a thread of
///   autograd. In the first pass `start` usually runs at the end of the pass.
///   The current stream has waited for the streams that filled the bucket.
///   `finish` runs on the thread that ends the pass (with GPUs mostly a thread
///   of autograd), on the caller's stream. The calls never overlap. Gradient
///   recording is off. Do not synchronise the host.
/// - An exception from `start` or `finish` ends the pass at once: this rank's
///   `backward()` throws it, a group of the job is closed on this rank, and the
///   other ranks get its text; see `Reducer`. In another group the other ranks
///   wait until this rank has left or the time-out is over. The values of
///   `.grad` are unspecified after a failed pass.
///
/// Example: gradients are sent as bfloat16.
/// @code
///   class Bf16Wire : public ddp::Exchange {
///    public:
///     explicit Bf16Wire(c10::intrusive_ptr<c10d::Backend> group)
///         : group_(std::move(group)) {}
///
///     void start(const ddp::GradientBucket& bucket) override {
///       if (bucket.index == 0) {
///         wires_.clear();
///         works_.clear();
///       }
///       std::vector<at::Tensor> wire{bucket.payload.to(at::kBFloat16)};
///       works_.push_back(group_->allreduce(wire));
///       wires_.push_back(wire[0]);
///     }
///     void finish(const ddp::GradientBucket& bucket) override {
///       works_[bucket.index]->wait();
///       bucket.payload.copy_(wires_[bucket.index]);
///     }
///     void abandon() noexcept override { works_.clear(); }
///
///    private:
///     c10::intrusive_ptr<c10d::Backend> group_;
///     std::vector<at::Tensor> wires_;
///     std::vector<c10::intrusive_ptr<c10d::Work>> works_;
///   };
///
///   ddp::DistributedDataParallel model(
///       net,
///       ddp::DistributedDataParallelOptions().exchange(
///           std::make_shared<Bf16Wire>(ddp::process_group())));
/// @endcode
///
/// Derive an exchange that only adds to one of this library's (timing, checks)
/// from that class; `AllReduce` has an example.
class Exchange : public Stateful {
 public:
  /// Returns the factor that gradients are multiplied by when they are copied
  /// into the bucket (on the CPU in the same pass over memory): 1 / ranks for a
  /// mean that is computed from sums (the default), 1 if the exchange itself
  /// divides. Called at the beginning of each pass. The result may differ
  /// between ranks.
  /// @param ranks  number of ranks of the reducer or, in a `Join` that divides
  ///   by the ranks with inputs, their number.
  /// @throws c10::Error if the exchange is over fewer ranks.
  virtual double scale(int ranks) const;

  /// Returns zeros of one dimension as the memory of a dense payload. The
  /// reducer calls this in its constructor, for a new plan, and before a pass
  /// in which the program still holds a gradient of the bucket. The last call
  /// happens on single ranks, so the call is not collective. The memory becomes
  /// `.grad` and may outlive this object. The tensor needs a storage of its own
  /// and begins at the storage's first element. On a GPU the storage needs an
  /// allocator: before a pass in which no `.grad` holds a gradient of the
  /// bucket, the reducer (without gradient_as_bucket_view) frees the memory and
  /// gets new memory from this allocator, without a call of this function.
  /// Default: memory of the device's allocator.
  virtual at::Tensor allocate(int64_t numel, const at::TensorOptions& options);

  /// Returns the reason why this exchange cannot process sparse payloads, as
  /// the beginning of an error message that continues with the parameter's
  /// name; empty if it can. Called once; the reducer's constructor throws this
  /// error if a parameter has sparse gradients. The default refuses.
  virtual std::string refuses_sparse() const;

  /// Begins the exchange of a full bucket and returns without waiting for other
  /// ranks. The exchange owns the payload until `finish` has returned.
  virtual void start(const GradientBucket& bucket) = 0;

  /// Ends the exchange: later work of the caller's stream sees the result.
  virtual void finish(const GradientBucket& bucket) = 0;

  /// Called if a pass has failed: by an exception as above, a missing gradient,
  /// a gradient that does not fit its bucket, a pass of another thread, or an
  /// exception of the program. Any number of buckets may have been started and
  /// finished. No pass follows. Not called if the reducer gets another group
  /// after an exception of the program. Release the works here: over Gloo a
  /// work that is still referenced keeps the connections open, and another rank
  /// waits on them until its time-out.
  virtual void abandon() noexcept {}

  /// Returns this rank's state for a resumed training: a dict of tensors by
  /// name, empty for an exchange without state (the default, which refuses to
  /// load entries). `Checkpoint::add` saves it for each rank.
  c10::IValue state_dict() const override;
  /// Throws if `load_state_dict` would throw, and changes nothing.
  void check_state_dict(const c10::IValue& state) const override;
  /// Continues from a state that `state_dict` returned. Call it between two
  /// passes, on all ranks.
  /// @throws c10::Error if the state does not fit.
  void load_state_dict(const c10::IValue& state) override;
  /// If another number of ranks loads a checkpoint, each rank gets the state of
  /// its rank modulo the number of saved states.
  CheckpointScope checkpoint_scope() const override {
    return CheckpointScope::per_rank_modulo;
  }

 private:
  friend class detail::ExchangeClaim;
  std::atomic<bool> is_claimed_{false};
};

namespace detail {

/// For `Exchange::scale`: checks that an exchange over `size` ranks is over all
/// ranks of the reducer. Otherwise each part of the ranks would train its own
/// model.
/// @throws c10::Error if `size` is below `ranks`.
void check_covers(int size, int ranks);

/// Claims an exchange for one reducer or one other exchange.
class ExchangeClaim {
 public:
  /// @param exchange  may be null.
  /// @throws c10::Error if another claim holds it.
  explicit ExchangeClaim(std::shared_ptr<Exchange> exchange)
      : exchange_(std::move(exchange)) {
    TORCH_CHECK(!exchange_ || !exchange_->is_claimed_.exchange(true),
                "Expected an exchange of its own for each model, because it "
                "keeps state between steps, but got one that another model, "
                "Reducer or exchange holds; make one for each");
  }
  ~ExchangeClaim() {
    if (exchange_) {
      exchange_->is_claimed_ = false;
    }
  }
  ExchangeClaim(const ExchangeClaim&) = delete;
  ExchangeClaim& operator=(const ExchangeClaim&) = delete;

  explicit operator bool() const { return exchange_ != nullptr; }
  Exchange* operator->() const { return exchange_.get(); }
  Exchange& operator*() const { return *exchange_; }

 private:
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace detail

}  // namespace ddp
