#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "ddp/job/join.h"
#include "ddp/reduce/options.h"
#include "ddp/reduce/reducer.h"
#include "ddp/tensors/ignored_parameters.h"

namespace ddp {

class GraphedStep;

namespace detail {
struct WrappedModule;
}  // namespace detail

/// Part of `DistributedDataParallel` that does not depend on the module's type.
/// Create it through `DistributedDataParallel`.
class DistributedDataParallelBase : public torch::nn::Module, public Joinable {
 public:
  ~DistributedDataParallelBase() override;

  /// For `NoSyncGuard`: the number of its guards.
  const detail::Pauses& pauses() const { return pauses_; }

  /// The group over which gradients are averaged; null if this rank is alone in
  /// it, even with an exchange.
  const c10::intrusive_ptr<c10d::Backend>& process_group() const {
    return group_;
  }

  /// Continues training with the ranks of another group, as if the module were
  /// wrapped again with this group and the same options. The ranks compare
  /// their modules and, unless init_sync is off, copy the parameters and
  /// buffers of the new group's rank 0. The buckets are planned again. The
  /// parameters that are trained stay the parameters of the first wrapping: the
  /// same parameters must have been trainable when each of the new ranks
  /// wrapped its module. Objects that refer to the wrapper (a container, an
  /// optimizer, a guard) stay valid. The backward pass of an earlier forward
  /// averages over the new ranks.
  ///
  /// Collective over the new group only; call it between backward passes. Ranks
  /// outside the new group do not call it. A rank that has no wrapper yet wraps
  /// its module with the new group at the same time. The call also works after
  /// a failed pass, or after ranks of the old group have left. Gradients and
  /// optimizer states stay local to each rank: if the ranks come from different
  /// groups, or one rank has a new optimizer, the next steps make the models
  /// differ. Then make a new optimizer on all ranks, or load a `Checkpoint`
  /// with the optimizer of one rank on all of them. Other objects that were
  /// given a group (a `SyncBatchNorm`, a sharded optimizer) keep their group. A
  /// `SyncBatchNorm` without a group of its own gets a group of the new ranks.
  ///
  /// @param group  null: all ranks. In a group of this rank alone, gradients
  ///   are exchanged only with an `exchange`.
  /// @param exchange  an exchange over the new group; required in a group of
  ///   several ranks if the model was wrapped with one. It starts from its own
  ///   state, for example from `PowerSGD::load_state_dict()` with the state of
  ///   the old exchange.
  /// @throws c10::Error on every rank of the new group if the modules or
  ///   options differ, if on one rank a pass is being reduced or a `Join`
  ///   contains the model, or if the exchange is missing or is the old one.
  ///   After the error every rank continues with its old group. An exchange
  ///   that does not fit the model (it belongs to another reducer, the model
  ///   has a reduce_dtype, or it refuses sparse gradients) throws on its own
  ///   rank alone, after the copy, and that rank keeps its old group. If a rank
  ///   leaves during the call, each rank that still waits for it throws.
  ///
  /// Example:
  /// @code
  ///   if (auto even = ddp::new_group({0, 2})) {
  ///     model->update_process_group(even);
  ///   }
  /// @endcode
  ///
  /// Source: DistributedDataParallel._update_process_group.
  void update_process_group(const c10::intrusive_ptr<c10d::Backend>& group,
                            std::shared_ptr<Exchange> exchange = nullptr);

  /// Always throws: converting a wrapped module would separate its gradients
  /// from their buckets. Convert the module first, then wrap it.
  /// @throws c10::Error always.
  void to(torch::Device device,
          torch::Dtype dtype,
          bool non_blocking = false) override;
  /// Always throws, as above.
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  /// Always throws, as above.
  void to(torch::Device device, bool non_blocking = false) override;

  /// Saves or loads the wrapped module (torch::save, torch::load). The files
  /// are interchangeable with files of the plain module. All ranks must load
  /// the same values; pass the rank's device to torch::load.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Loads the wrapped module, as above.
  void load(torch::serialize::InputArchive& archive) override;

  /// Prints the name of the class.
  void pretty_print(std::ostream& stream) const override;

  /// Returns each parameter once, for the optimizer. LibTorch's `parameters()`
  /// lists a parameter of several submodules several times, and SGD would step
  /// it as often.
  std::vector<torch::Tensor> parameters(bool recurse = true) const;

  /// Interface of `Joinable`, called by `Join`.
  std::string join_name() const override { return "DistributedDataParallel"; }
  c10::intrusive_ptr<c10d::Backend> join_group() const override {
    return group_;
  }
  c10::Device join_device() const override { return device_; }
  std::string refuses_join() const override;
  void take_part(const JoinTurn& turn) override;
  void end_join(int source) override;

 protected:
  /// Keeps the options for `synchronize` and takes the group. Throws as the
  /// constructor of `DistributedDataParallel` for a missing group or an invalid
  /// buffer_hook.
  /// @param name  of the wrapper's class, for errors.
  explicit DistributedDataParallelBase(
      const DistributedDataParallelOptions& options,
      const char* name = "DistributedDataParallel");

  /// Verifies that the ranks' modules agree, broadcasts the state and creates
  /// the reducer. `module` must be registered as a submodule already.
  void synchronize(torch::nn::Module& module);
  /// Checks the parameters and claims them for the reducer, before each
  /// forward.
  void before_forward();

  /// Returns a line for each option, which all ranks must have alike.
  virtual std::vector<std::string> compared_options(
      const c10::intrusive_ptr<c10d::Backend>& ranks,
      const std::shared_ptr<Exchange>& exchange) const;
  /// Returns the reason why this module cannot be wrapped, or "".
  virtual std::string refuses_module(const detail::WrappedModule& found) const;
  /// Whether `default_exchange` moves a module on the CPU to the GPU of an NCCL
  /// group.
  virtual bool moves_module() const { return false; }
  /// Returns the exchange over `process_group()` if the program has given none;
  /// null stands for an `AllReduce`. Called after the comparison of the ranks'
  /// modules. Collective.
  virtual std::shared_ptr<Exchange> default_exchange(
      const detail::WrappedModule& found);
  /// Returns the reason why `update_process_group` cannot be called, or "".
  virtual std::string refuses_group(
      const c10::intrusive_ptr<c10d::Backend>& group,
      const std::shared_ptr<Exchange>& exchange) const;

 private:
  friend class GraphedStep;
  struct Pass;

  /// For `GraphedStep`. Returns the reason why steps cannot be recorded, or "".
  std::string refuses_recording() const;

  /// Called by `clone()` of a module that contains the wrapper; always throws.
  void clone_(torch::nn::Module& other,
              const std::optional<torch::Device>& device) override;
  void set_precision(const detail::WrappedModule& found);
  void make_reducer(const c10::intrusive_ptr<c10d::Backend>& group,
                    const std::shared_ptr<Exchange>& exchange);
  c10::intrusive_ptr<c10d::Backend> group_of_norms(
      const c10::intrusive_ptr<c10d::Backend>& group) const;
  void share_group(const c10::intrusive_ptr<c10d::Backend>& ranks,
                   const c10::intrusive_ptr<c10d::Backend>& group_of_norms);
  void check_parameters() const;

  DistributedDataParallelOptions options_;
  c10::intrusive_ptr<c10d::Backend> group_;
  torch::nn::Module* inner_ = nullptr;
  std::shared_ptr<Exchange> exchange_;   // null: AllReduce
  std::vector<NamedParameter> trained_;  // trainable at the wrap
  std::vector<NamedParameter> frozen_;
  std::set<std::string> ignored_;  // names of local tensors
  std::unique_ptr<detail::IgnoredParameters> ignored_parameters_;
  // Null in a world of one, unless the program gave an exchange.
  std::unique_ptr<Reducer> reducer_;
  std::shared_ptr<Pass> pass_;      // shared with the reducer
  c10::Device device_ = c10::kCPU;  // of the first trained parameter
  detail::Pauses pauses_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace ddp
