#pragma once

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
#include "ddp/tensors/parameter_casts.h"
#include "ddp/tensors/parameter_groups.h"

namespace ddp {

namespace detail {
struct TensorSpec;
struct WrappedModule;
}  // namespace detail

/// What `DistributedDataParallel` does for any type of module.
class DistributedDataParallelBase : public torch::nn::Module, public Joinable {
 public:
  ~DistributedDataParallelBase() override;

  /// True while a `NoSyncGuard` of this model lives.
  bool is_sync_paused() const { return pauses_ > 0; }

  /// The ranks that train together; null for a world of one.
  const c10::intrusive_ptr<c10d::Backend>& process_group() const {
    return group_;
  }

  /// Trains with the ranks of another group from here on, as if the module were
  /// wrapped again with this group and the same options: the modules are
  /// compared and, unless init_sync is off, get the parameters and buffers of
  /// the new group's rank 0; buckets are planned anew. What has the wrapper (a
  /// container, an optimizer, a guard) keeps it, and a backward pass of a
  /// forward before averages over the new ranks.
  ///
  /// Collective over the new group alone, between backward passes. A rank that
  /// is not in it does not call this; one that is new wraps its module with
  /// that group meanwhile. Works also when a pass has failed or ranks of the
  /// group before have gone. Gradients and optimizers stay each rank's own, and
  /// so do other objects that were given a group (a `SyncBatchNorm`, a sharded
  /// optimizer). A `SyncBatchNorm` without one of its own gets the new one.
  ///
  /// @param group  null: all ranks. This rank alone: nothing is exchanged.
  /// @param exchange  over the new group, needed where the model was wrapped
  ///   with one. It begins with what it holds, such as a
  ///   `PowerSGD::load_state()` of the one before.
  /// @throws c10::Error on every rank of the new group, each of which trains on
  ///   as before, when the modules or options differ, or when on one of them a
  ///   pass is being reduced, a `Join` has the model or the exchange is
  ///   missing.
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

  /// Moving or converting a wrapped module would part its gradients from their
  /// buckets. @throws c10::Error always: convert the module, then wrap it.
  void to(torch::Device device,
          torch::Dtype dtype,
          bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

  /// torch::save and torch::load of the wrapper are those of the module, so
  /// that the file loads into the plain module and the other way round. All
  /// ranks are to load the same values; give torch::load the rank's device.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  void pretty_print(std::ostream& stream) const override;

  /// Each parameter once, also one that several submodules share: what an
  /// optimizer is to have. LibTorch's own lists such a one several times, and
  /// SGD then steps it as often.
  std::vector<torch::Tensor> parameters(bool recurse = true) const;

  /// For `Join`.
  std::string join_name() const override { return "DistributedDataParallel"; }
  c10::intrusive_ptr<c10d::Backend> join_group() const override {
    return group_;
  }
  c10::Device join_device() const override { return device_; }
  std::string refuses_join(const JoinOptions& options) const override;
  void take_part(const JoinTurn& turn) override;
  void end_join(int source) override;

 protected:
  explicit DistributedDataParallelBase(
      const DistributedDataParallelOptions& options);

  /// Verifies, broadcasts and hooks. `module` is registered already.
  void synchronize(torch::nn::Module& module);
  void before_forward();
  void watch(const torch::Tensor& output);

  std::optional<c10::ScalarType> input_dtype() const {
    return options_.mixed_precision().param_dtype();
  }
  /// For a forward; null where parameters are used as they are.
  std::unique_ptr<detail::CastScope> cast_parameters() const;

 private:
  friend class NoSyncGuard;
  struct Pass;

  void set_precision(const detail::WrappedModule& found);
  void make_reducer();
  void share_group(const c10::intrusive_ptr<c10d::Backend>& group);
  std::vector<detail::TensorSpec> compared_options(
      const std::shared_ptr<Exchange>& exchange) const;
  std::string refuses_group(const c10::intrusive_ptr<c10d::Backend>& group,
                            const std::shared_ptr<Exchange>& exchange) const;
  void pause();
  void check_frozen() const;

  DistributedDataParallelOptions options_;
  c10::intrusive_ptr<c10d::Backend> group_;
  torch::nn::Module* inner_ = nullptr;
  std::shared_ptr<Exchange> exchange_;   // null for the usual one
  std::vector<NamedParameter> trained_;  // when wrapped
  std::vector<NamedParameter> frozen_;
  std::set<std::string> ignored_;  // names that the ranks do not share
  std::unique_ptr<detail::IgnoredParameters> each_ranks_own_;
  detail::ParameterCastsPtr casts_;   // null without mixed precision
  std::unique_ptr<Reducer> reducer_;  // null in a world of one
  std::shared_ptr<Pass> pass_;        // shared with the reducer
  c10::Device device_ = c10::kCPU;    // of the first gradient
  int pauses_ = 0;
  bool reduces_ = false;  // the forward that runs now
};

}  // namespace ddp
