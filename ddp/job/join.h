#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp {

class Join;
struct JoinOptions;

/// One collective act of the ranks that still have inputs: a backward pass of a
/// model, a step of an optimizer that is sharded.
struct JoinTurn {
  std::vector<int> live;  ///< ranks that still have inputs, ascending
  int divisor = 1;        ///< how many ranks a mean is over
  int last_live() const { return live.back(); }
};

/// What communicates once a step and can do so for a rank that has no input
/// left. `DistributedDataParallel` is one.
///
/// Before each of its acts that communicates, where `join()` is not null, a
/// Joinable calls `join()->announce(*this)`, and `join()->done(*this)` after
/// it.
///
/// Example, a sum that the ranks make in each step:
/// @code
///   class Hits : public ddp::Joinable {
///    public:
///     std::string join_name() const override { return "Hits"; }
///     c10::intrusive_ptr<c10d::Backend> join_group() const override {
///       return ddp::process_group();
///     }
///     c10::Device join_device() const override { return ddp::local_device(); }
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

  /// "DistributedDataParallel", for errors.
  virtual std::string join_name() const = 0;

  /// The ranks. Null: those of the first joinable of the Join that has a group;
  /// a world of one where none has.
  virtual c10::intrusive_ptr<c10d::Backend> join_group() const = 0;

  /// Where the group takes tensors.
  virtual c10::Device join_device() const = 0;

  /// Why it cannot do without an input as the options want, "" when it can.
  virtual std::string refuses_join(const JoinOptions& /*options*/) const {
    return "";
  }

  /// Makes the collectives of one act with the ranks that have announced it.
  virtual void take_part(const JoinTurn& turn) = 0;

  /// No rank has inputs left. Takes the state of rank `source`, which has been
  /// there to the end. `join()` is still set.
  virtual void end_join(int source) = 0;

 protected:
  /// The Join that this is in, null for none.
  Join* join() const { return join_; }

 private:
  friend class Join;
  Join* join_ = nullptr;
};

/// Options of `Join`; the defaults are PyTorch's.
struct JoinOptions {
  /// Gradients are divided by the number of all ranks; false: by the number of
  /// those that still have inputs. The first gives every input of an epoch the
  /// same weight. The second is refused for an exchange among some of the ranks
  /// (`SwitchExchange`), none of which knows how many of those have inputs; a
  /// `WeightedMean` among them does.
  TORCH_ARG(bool, divide_by_initial_world_size) = true;
  /// The first rank without inputs ends the loop on all: each gets an error
  /// that names it, the others in their next forward.
  TORCH_ARG(bool, throw_on_early_termination) = false;
  /// False: no more than if there were no Join.
  TORCH_ARG(bool, enable) = true;
};

/// Lets ranks train on different numbers of inputs. A rank that has none left
/// takes part in what the others do, with gradients of zero, until they have
/// none either; then all have the parameters and buffers of the rank that was
/// there to the end.
///
/// The constructor and `finish` are collective. In between each backward pass
/// that is reduced begins with an exchange of one number, for which a GPU's
/// host waits. Forwards, passes under a `NoSyncGuard` and evaluation cost
/// nothing; ranks may differ in them. Buffers are broadcast from the highest
/// rank that has inputs.
///
/// The optimizer of a rank without inputs does not step, so its momentum
/// differs afterwards. `finish` takes what is to be done after each pass, by
/// which it stays equal on all ranks, too.
///
/// A `GradScaler` belongs into the Join, too, and `finish` then steps by it:
/// @code
///   ddp::Join join({*model, scaler});
///   ...
///   join.finish([&] {
///     scaler.step(optimizer);
///     scaler.update();
///   });
/// @endcode
/// Caution: the gradients of a rank without inputs are scaled like all others.
/// A Join does not see which optimizer the function steps, so a function that
/// calls `optimizer.step()` without the scaler is no error: the rank steps by
/// scaled gradients, and its momentum stays wrong after the Join.
///
/// Not shadowed are collectives of one's own in the loop, and a `SyncBatchNorm`
/// in training mode, which is an error unless throw_on_early_termination is
/// set. Of several
/// models each has a backward() of its own.
///
/// @throws c10::Error on every rank when what the ranks give differs, when a
///   joinable is in another Join, has another group than the first or refuses,
///   or when ranks announce different ones.
///
/// The joinables must outlive it. Without `finish` (an exception) it leaves
/// them and communicates nothing.
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
  /// @param joinables  in the same order on all ranks.
  explicit Join(std::vector<std::reference_wrapper<Joinable>> joinables,
                const JoinOptions& options = {});
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  /// This rank has no inputs left. Returns when no rank has any.
  /// @param after_turn  done after each act of the others in which this rank
  ///   has taken part; every `.grad` then holds their average. Needed
  ///   where a step is one of all ranks; see `step_outside`.
  /// @throws c10::Error with throw_on_early_termination when others have some;
  ///   without a function where `step_outside` was called.
  void finish(const std::function<void()>& after_turn = {});

  const JoinOptions& options() const { return options_; }
  /// The ranks of this Join; null where there are no others, or after it.
  const c10::intrusive_ptr<c10d::Backend>& group() const { return group_; }
  /// Whether this thread is between the constructor and the end of a Join that
  /// lets ranks go on without inputs.
  static bool is_running();

  /// Whether it is one of the joinables, and ranks go on without inputs.
  bool steps_for(const Joinable& who) const;

  /// For units whose step is one of all ranks and no turn of a Join (a
  /// ZeroRedundancyOptimizer outside of it, a GradScaler with a process_group,
  /// a ModelAverager): called before each step of `unit`. A rank without inputs
  /// makes such a step in the function that its `finish` gets.
  /// @throws c10::Error when a rank without inputs has no function, and when no
  ///   backward pass was reduced since the previous step of `unit`; where this
  ///   rank calls `finish` without a function later, that throws.
  static void step_outside(const char* name, const void* unit);

  /// For joinables: this rank has inputs, and `who` communicates next.
  /// Collective.
  JoinTurn announce(const Joinable& who);

  /// For joinables: what was announced has ended.
  void done(const Joinable& who);

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
  c10::intrusive_ptr<c10d::Backend> group_;  // null when there is nothing to do
  const Joinable* busy_ = nullptr;           // between announce and done
  int last_live_ = 0;
  int64_t turns_ = 0;
  /// By name and unit: turns before its last step_outside.
  std::map<std::pair<std::string, const void*>, int64_t> stepped_;
  std::vector<int> idle_;           // without inputs and function, last known
  const char* outsider_ = nullptr;  // has called step_outside on this rank
  bool is_finishing_ = false;
};

}  // namespace ddp
