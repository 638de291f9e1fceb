#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "ddp/job/named_parameter.h"

namespace ddp {

namespace detail {
class ExchangeClaim;
}

/// Gradients that ranks combine at once: what an `Exchange` is given.
struct GradientBucket {
  size_t index = 0;  ///< in the plan; buckets fill and start in this order
  size_t count = 1;  ///< buckets of the plan

  /// The gradients, multiplied by `Exchange::scale`. Two kinds:
  /// - dense: one dimension, contiguous, one dtype and device. The gradients
  ///   lie in it one after the other; what follows them is padding. The same
  ///   number of elements on every rank, a multiple of `Exchange::multiple_of`.
  /// - sparse: the one sparse gradient, a coalesced COO tensor. Other rows on
  ///   each rank, none where the rank has no gradient.
  at::Tensor payload;

  /// Whose gradients these are, in the order of the payload.
  c10::ArrayRef<NamedParameter> parameters;

  bool is_last() const { return index + 1 == count; }

  /// Each parameter's gradient: pieces of the payload's memory with the
  /// parameter's shape, or the sparse payload. Makes tensors, so for exchanges
  /// that work on matrices; what works on all elements takes the payload.
  std::vector<at::Tensor> gradients() const;
};

/// How ranks combine their gradients: what happens to a bucket between the
/// moment when its last gradient is there and the optimizer's step. The reducer
/// knows when; an exchange knows how. `AllReduce` is the usual one; a narrow
/// wire, a compression, a hook, a timer, a check is another one, given to
/// `DistributedDataParallelOptions::exchange` or to a `Reducer`.
///
/// In a backward pass each bucket is given to `start` once and then to `finish`
/// once, on every rank:
/// @verbatim
///   hook of the last gradient of bucket 0 -> start(0)    while the pass runs
///   hook of the last gradient of bucket 1 -> start(1)
///   end of the pass                       -> finish(0), finish(1)
///   backward() returns
/// @endverbatim
/// A bucket without gradients on this rank (unused parameters) comes as zeros,
/// so every rank makes the same calls. An exchange may keep what it likes
/// between `start` and `finish` and between passes (works, error feedback,
/// times): such state is its own, and one object serves one reducer; a second
/// one is refused while the first lives.
///
/// Contract:
/// - `start` and `finish` are called in the order of `index`, which is the same
///   on all ranks; an exchange that communicates in this order alone matches
///   its peers. `finish(0)` may come after all `start`s.
/// - After `finish` the payload holds this rank's result. It becomes `.grad`
///   without a copy, so the result must lie in the payload's own memory; a
///   sparse result in the payload itself (`copy_`, or as all-reduces leave it).
///   An exchange that leaves only a part of it valid, as a reduce-scatter does,
///   tells its optimizer which.
/// - The payload may have other memory in the next pass; nothing of it may be
///   held after `finish`. The plan (which gradients are in which bucket) is
///   settled before the first `start` and stays.
/// - Threads and streams: `start` runs on the thread of autograd that
///   accumulated the bucket's last gradient, with the stream current that
///   filled the bucket; `finish` on the caller's stream. Never two at once.
///   Gradient recording is off. Do not synchronise the host.
/// - An exception of either becomes that of this rank's `backward()`, and the
///   ranks are no longer in step: end the program, or start again from a
///   checkpoint. After one of `finish` the rest of the pass is done with the
///   other ranks, so that they need not wait; where this rank makes another
///   pass all the same, that one fails on all ranks and says why. A second one
///   in the pass, and any of `start`, ends it at once, and where the group is
///   one of the job, it is closed on this rank: the others hear of it as if
///   this rank had left (`ddp::init_process_group` says how). In another group
///   they wait until it has left or their time-out is over.
///
/// Example, gradients that travel as bfloat16:
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
/// An exchange that adds to another one (times it, checks its input) derives
/// from `ForwardingExchange`.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// What gradients are multiplied by on their way into the bucket, in the same
  /// pass over memory: 1 / ranks for a mean made of sums, 1 where the exchange
  /// divides by itself. Asked at the beginning of each pass.
  virtual double scale(int ranks) const;

  /// Dense payloads are padded with zeros to a multiple of this: the number of
  /// ranks for an exchange that gives each rank an equal part. Asked once.
  virtual int64_t multiple_of(int ranks) const;

  /// True when `finish` leaves in every element of a dense payload the plain
  /// sum over ranks, whatever the others hold. One element more then travels in
  /// the last bucket, by which ranks tell each other of a missing gradient;
  /// else a small all-reduce of its own carries that. Asked once.
  virtual bool sums_every_element() const;

  /// Of how many ranks a gradient is the mean or sum, at some time the fewest;
  /// 0: of all that the reducer has, or of any number. One among fewer cannot
  /// know how many of these have inputs left: a `Join` that divides by them
  /// refuses it.
  virtual int min_group_size() const;

  /// Whether ranks that step alike change their parameters alike: `finish`
  /// leaves the same on all ranks, or in parts that they put together. The
  /// reducer then tells a rank that has left out a step, on the CPU. True
  /// unless `min_group_size` are fewer. The answer stays.
  virtual bool is_replica_consistent(int ranks) const;

  /// Why this exchange takes no sparse payloads, as a part of an error that
  /// goes on with the parameter's name; empty when it takes them. Asked once.
  virtual std::string refuses_sparse() const;

  /// Begins the exchange of a full bucket and returns without waiting for other
  /// ranks. The payload is the exchange's until `finish` has returned.
  virtual void start(const GradientBucket& bucket) = 0;

  /// Ends it: what the caller's stream does next sees the result.
  virtual void finish(const GradientBucket& bucket) = 0;

  /// A pass has ended before all that has started was finished, and none will
  /// follow. To let go of the works: over Gloo a work that somebody holds keeps
  /// the connections open, and another rank waits on them until its time-out.
  virtual void abandon() noexcept {}

  /// What a resumed training continues from, of this rank, by name; empty for
  /// an exchange that keeps nothing. `Checkpoint::add` saves it for each rank.
  virtual std::map<std::string, at::Tensor> state() const;
  /// Throws where `load_state` would, and changes nothing.
  virtual void check_state(
      const std::map<std::string, at::Tensor>& state) const;
  /// Continues from what `state` gave, between two passes, on all ranks.
  /// @throws c10::Error when it does not fit.
  virtual void load_state(std::map<std::string, at::Tensor> state);

  /// The exchanges that this one hands calls on to. The reducer that uses this
  /// one uses them, too, and no other reducer may.
  virtual std::vector<Exchange*> inner_exchanges() const { return {}; }

 protected:
  /// Whether a reducer uses this exchange. A model without other ranks has no
  /// reducer.
  bool is_claimed() const { return is_claimed_; }

 private:
  friend class detail::ExchangeClaim;
  std::atomic<bool> is_claimed_{false};  // by a reducer
};

}  // namespace ddp
