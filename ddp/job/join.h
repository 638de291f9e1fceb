#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp {

class Join;
struct JoinOptions;

/// One collective step of the ranks that still have inputs: a backward pass of
/// a model, or a step of a sharded optimizer.
struct JoinTurn {
  std::vector<int> live;  ///< ranks that still have inputs, ascending
  int divisor = 1;        ///< number of ranks in a mean
  /// Returns the highest rank that still has inputs.
  int last_live() const { return live.back(); }
};

/// An object that communicates once per step and can do so on behalf of a rank
/// that has no inputs left, such as `DistributedDataParallel`.
///
/// If `join()` is not null, a Joinable calls `join()->announce(*this)` before
/// each of its communicating steps, and `join()->done(*this)` after it.
///
/// Example: a sum over the ranks in each step.
/// @code
///   class Hits : public ddp::Joinable {
///    public:
///     std::string join_name() const override { return "Hits"; }
///     c10::intrusive_ptr<c10d::Backend> join_group() const override {
///       return ddp::process_group();
///     }
///     c10::Device join_device() const override { return ddp::local_device(); }
///     /// @param mine  one number of float.
///     torch::Tensor sum(const torch::Tensor& mine) {
///       if (join() != nullptr) {
///         join()->announce(*this);
///       }
///       auto sum = ddp::reduce_tensor(mine, ddp::Reduction::sum);
///       if (join() != nullptr) {
///         join()->done(*this);
///       }
///       return sum;
///     }
///     void take_part(const ddp::JoinTurn&) override {
///       ddp::reduce_tensor(torch::zeros({}), ddp::Reduction::sum);
///     }
///     void end_join(int) override {}
///   };
/// @endcode
class Joinable {
 public:
  virtual ~Joinable() = default;

  /// Name for errors, such as "DistributedDataParallel".
  virtual std::string join_name() const = 0;

  /// The ranks. Null: the group of the first joinable of the Join that has a
  /// group; a world of one if there is none.
  virtual c10::intrusive_ptr<c10d::Backend> join_group() const = 0;

  /// Device for tensors of the group's collectives.
  virtual c10::Device join_device() const = 0;

  /// Returns why this object cannot join, as the end of a clause that begins
  /// with the object's name and "that" ("has a buffer_hook"), or "". A Join
  /// with throw_on_early_termination ignores the answer.
  virtual std::string refuses_join() const { return ""; }

  /// Executes the collectives of one step together with the ranks that
  /// announced it. Called on ranks without inputs.
  virtual void take_part(const JoinTurn& turn) = 0;

  /// Takes over the state of rank `source`, which had inputs until the end.
  /// Called when no rank has inputs left; `join()` is still set.
  virtual void end_join(int source) = 0;

 protected:
  /// The Join that contains this object, or null.
  Join* join() const { return join_; }

 private:
  friend class Join;
  Join* join_ = nullptr;
};

/// Options of `Join`; the defaults are PyTorch's.
struct JoinOptions {
  /// True: divide gradients by the number of all ranks, so that every input of
  /// an epoch has the same weight. False: divide by the number of ranks that
  /// still have inputs.
  TORCH_ARG(bool, divide_by_initial_world_size) = true;
  /// The first rank without inputs ends the loop on all ranks. Each rank gets
  /// an error that names this rank; the other ranks get the error in their next
  /// forward, or in the next step of another joinable.
  TORCH_ARG(bool, throw_on_early_termination) = false;
  /// False: the Join has no effect. Must be equal on all ranks, which do not
  /// compare it.
  TORCH_ARG(bool, enable) = true;
};

/// Lets ranks train on different numbers of inputs. A rank without inputs takes
/// part in the collectives of the others with zero gradients, until no rank has
/// inputs. Then all ranks copy the parameters and buffers of the rank that had
/// inputs until the end. When `finish` takes part in a pass of the others, it
/// replaces each `.grad` of its rank by the average, also one that a pass under
/// a `NoSyncGuard` has left. To accumulate over several batches, make all
/// passes but the last under a `NoSyncGuard`: an average that `.grad` already
/// holds is otherwise multiplied by the share of the ranks that still have
/// inputs.
///
/// The constructor and `finish` are collective. In between, each reduced
/// backward pass, and each step of another joinable, begins with an all-gather
/// of one number, and the host waits for it, also on a GPU. Forwards, passes
/// under a `NoSyncGuard` and evaluation cost nothing; ranks may differ in them.
/// With throw_on_early_termination a model makes the all-gather in each forward
/// with gradient recording instead, also under a `NoSyncGuard`, so all ranks
/// need the same number of these forwards. Buffers are broadcast from the
/// highest rank that has inputs; with throw_on_early_termination from rank 0.
///
/// The optimizer of a rank without inputs does not step, so its momentum would
/// differ afterwards. Pass the step to `finish`, which runs it after each pass,
/// to keep the optimizer equal on all ranks. With several joinables it runs
/// after the turn of each joinable.
///
/// A Join does not shadow the program's own collectives in the loop. Unless
/// throw_on_early_termination is set, the following are errors in the loop:
/// - a `SyncBatchNorm` in training mode,
/// - a `buffer_hook`,
/// - an enabled `GradScaler`: its scale would differ between ranks,
/// - a `ModelAverager` with other ranks,
/// - a `ZeroRedundancyOptimizer` that is not part of the Join.
///
/// With several models, each model needs its own backward().
///
/// @throws c10::Error on every rank if the ranks pass joinables of different
///   names or different options, if a joinable is in another Join, has another
///   group than the first one or (without throw_on_early_termination) refuses
///   to join, or if ranks announce different joinables.
///
/// Thread contract: one thread constructs, finishes and destroys the Join, and
/// steps the optimizers between.
///
/// The joinables must outlive the Join. If an exception destroys the Join
/// without `finish`, the destructor releases the joinables and does not
/// communicate.
///
/// Example:
/// @code
///   ddp::Join join({*model});
///   for (auto& batch : *loader) {  // more of them on some ranks
///     optimizer.zero_grad();
///     loss(model->forward(batch.data), batch.target).backward();
///     optimizer.step();
///   }
///   join.finish([&] { optimizer.step(); });
/// @endcode
///
/// Source: torch.distributed.algorithms.Join.
class Join {
 public:
  /// @param joinables  in the same order on all ranks; at least one, else
  ///   c10::Error.
  explicit Join(std::vector<std::reference_wrapper<Joinable>> joinables,
                const JoinOptions& options = {});
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  /// Takes part in the steps of the other ranks until no rank has inputs left.
  /// Collective; call it when this rank has no more inputs. A second call does
  /// nothing.
  /// @param after_turn  called after each step of the other ranks in which this
  ///   rank has taken part; every `.grad` then holds their average. It must not
  ///   step a joinable of this Join.
  /// @throws c10::Error with throw_on_early_termination if other ranks have
  ///   inputs.
  void finish(const std::function<void()>& after_turn = {});

  /// Returns the options of this Join.
  const JoinOptions& options() const { return options_; }
  /// Returns true if this thread is inside a Join (between its constructor and
  /// its end) that lets ranks continue without inputs.
  static bool is_running();

  /// Tells the other ranks that this rank has inputs and that `joinable`
  /// communicates next. Called by the joinable. Collective.
  /// @throws c10::Error in the function of `finish`, and before another
  ///   joinable has called `done`.
  JoinTurn announce(const Joinable& joinable);

  /// Ends the announced step. Called by the joinable.
  void done(const Joinable& joinable);

 private:
  void verify() const;
  c10::Device device() const;
  std::vector<int> exchange(int mine);
  JoinTurn turn_of(const std::vector<int>& announced);
  void check_even(const JoinTurn& turn) const;
  std::string name_of(int announced) const;
  void leave();

  std::vector<std::reference_wrapper<Joinable>> joinables_;
  JoinOptions options_;
  c10::intrusive_ptr<c10d::Backend> group_;  // null if inactive
  const Joinable* busy_ = nullptr;           // between announce and done
  int last_live_ = 0;
  bool is_finishing_ = false;
};

}  // namespace ddp
