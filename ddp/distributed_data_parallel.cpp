#include "ddp/distributed_data_parallel.h"

#include <utility>

#include <c10/core/GradMode.h>

#include "ddp/detail/activations/replay_state.h"
#include "ddp/detail/amp/precision_of_wrapper.h"
#include "ddp/detail/job_files/progress_file.h"
#include "ddp/detail/named_tensors.h"
#include "ddp/detail/peers.h"
#include "ddp/detail/state_sync.h"
#include "ddp/detail/wrapper/buffer_sync.h"
#include "ddp/detail/wrapper/wrapped_module.h"
#include "ddp/nn/script_module.h"
#include "ddp/nn/sync_batch_norm.h"
#include "ddp/process_group.h"

namespace ddp {
namespace {

void check_no_script(const torch::nn::Module& module) {
  for (const auto& item : module.named_modules()) {
    TORCH_CHECK(item.value()->as<ScriptModuleImpl>() == nullptr,
                "Expected mixed_precision without a param_dtype for a "
                "ScriptModule, but got one; use the script's own autocast, or "
                "convert it");
  }
}

[[noreturn]] void refuse_conversion() {
  TORCH_CHECK(
      false,
      "Expected to() on a module that is not wrapped yet, but got it on "
      "DistributedDataParallel; convert the module, then wrap it");
}

}  // namespace

DistributedDataParallelBase::DistributedDataParallelBase(
    const DistributedDataParallelOptions& options)
    : torch::nn::Module("DistributedDataParallel"),
      options_(options),
      group_(detail::peers(options.process_group())),
      ignored_(options.params_and_buffers_to_ignore().begin(),
               options.params_and_buffers_to_ignore().end()) {
  TORCH_CHECK(!options.buffer_hook() || options.broadcast_buffers(),
              "Expected broadcast_buffers with a buffer_hook, but got it off; "
              "leave out one of them");
}

void DistributedDataParallelBase::synchronize(torch::nn::Module& module) {
  inner_ = &module;
  const auto found = detail::look_into(module, ignored_);
  for (const auto& item : found.parameters) {
    (item.tensor.requires_grad() ? trained_ : frozen_).push_back(item);
  }
  TORCH_CHECK(!trained_.empty(),
              "Expected a module with at least one parameter that requires a "
              "gradient",
              ignored_.empty() ? "" : " and is not ignored",
              ", but it has none; it needs no DistributedDataParallel");
  device_ = trained_.front().tensor.device();
  set_precision(found);
  share_group(options_.process_group());
  if (group_) {
    detail::bring_together(*group_, device_, found, options_.init_sync());
    make_reducer();
  }
}

void DistributedDataParallelBase::make_reducer() {
  reducer_ = std::make_unique<Reducer>(
      trained_,
      group_,
      DistributedDataParallelOptions(options_).exchange(exchange_));
  reducer_->mean_over([this] { return begin_turn(); });
  const auto sync =
      options_.broadcast_buffers()
          ? detail::buffer_sync(*inner_, ignored_, options_.buffer_hook())
          : nullptr;
  reducer_->on_pass([this, sync] {
    if (sync) {
      sync(buffer_source_, *group_);
    }
    if (join() != nullptr) {
      join()->done(*this);
    }
  });
}

/// The collectives are those of the constructor, so that a rank that is new may
/// wrap its module meanwhile.
void DistributedDataParallelBase::update_process_group(
    const c10::intrusive_ptr<c10d::Backend>& group,
    std::shared_ptr<Exchange> exchange) {
  const auto refusal = refuses_group(group, exchange);
  const auto next = detail::peers(group);
  TORCH_CHECK(next || refusal.empty(), refusal);
  if (next) {
    detail::bring_together(*next,
                           device_,
                           detail::look_into(*inner_, ignored_),
                           options_.init_sync(),
                           refusal);
  }
  exchange = detail::exchange_in(
      options_.mixed_precision(), std::move(exchange), next);
  if (next && reducer_) {
    reducer_->change_group(next, exchange);
  }
  group_ = next;
  share_group(group);
  exchange_ = std::move(exchange);
  if (!group_) {
    if (reducer_) {
      reducer_->release();
    }
    reducer_.reset();
  } else if (!reducer_) {
    make_reducer();
  }
}

/// Layers that communicate do so with the wrapper's ranks.
void DistributedDataParallelBase::share_group(
    const c10::intrusive_ptr<c10d::Backend>& group) {
  for (const auto& layer : inner_->modules()) {
    if (auto* norm = layer->as<SyncBatchNormImpl>()) {
      norm->follow_process_group(group);
    }
  }
}

std::string DistributedDataParallelBase::refuses_group(
    const c10::intrusive_ptr<c10d::Backend>& group,
    const std::shared_ptr<Exchange>& exchange) const {
  if (reducer_ && reducer_->is_in_pass()) {
    return "Expected update_process_group between backward passes, but got it "
           "while one is reduced; call it when backward() has returned";
  }
  if (join() != nullptr) {
    return "Expected update_process_group outside of a Join, but got it in "
           "one; finish that first";
  }
  if (options_.exchange() && !exchange && detail::peers(group)) {
    return "Expected an exchange over the new group, because the model was "
           "wrapped with one of its own, but got none; make one like that "
           "over the new group";
  }
  if (exchange && exchange == exchange_) {
    return "Expected an exchange over the new group, but got the one that the "
           "model has, which is of the group before; make another one";
  }
  return "";
}

void DistributedDataParallelBase::set_precision(
    const detail::WrappedModule& found) {
  const auto& precision = options_.mixed_precision();
  exchange_ = detail::exchange_in(precision, options_.exchange(), group_);
  if (precision.param_dtype()) {
    check_no_script(*inner_);
    casts_ = std::make_shared<detail::ParameterCasts>(
        detail::tensors_of(found.parameters), *precision.param_dtype());
  }
  detail::cast_buffers(precision, detail::tensors_of(found.buffers));
}

std::unique_ptr<detail::CastScope>
DistributedDataParallelBase::cast_parameters() const {
  if (!casts_) {
    return nullptr;
  }
  auto casts = detail::CastScope::active();
  casts.push_back(casts_);
  return std::make_unique<detail::CastScope>(std::move(casts));
}

int DistributedDataParallelBase::begin_turn() {
  buffer_source_ = 0;
  if (join() == nullptr || join()->options().throw_on_early_termination()) {
    return group_->getSize();
  }
  const auto turn = join()->announce(*this);
  buffer_source_ = turn.last_live();
  return turn.divisor;
}

void DistributedDataParallelBase::take_part(const JoinTurn& turn) {
  buffer_source_ = turn.last_live();
  reducer_->shadow_pass(turn.divisor);
}

/// Parameters that were frozen, too: the source may have changed them.
void DistributedDataParallelBase::end_join(int source) {
  for (const auto& tensors :
       {inner_->named_parameters(), inner_->named_buffers()}) {
    detail::broadcast_from(
        source, *group_, detail::tensors_of(detail::unique(tensors, ignored_)));
  }
  reducer_->forget_steps();
}

std::string DistributedDataParallelBase::refuses_join(
    const JoinOptions& options) const {
  const int among = exchange_ ? exchange_->fewest_ranks() : 0;
  if (!options.divide_by_initial_world_size() && among > 1 &&
      among < group_->getSize()) {
    return c10::str("exchanges gradients among ",
                    among,
                    " of ",
                    group_->getSize(),
                    " ranks, of which none knows how many have inputs: use "
                    "divide_by_initial_world_size(true), or a WeightedMean "
                    "with weights of 0");
  }
  if (options_.buffer_hook()) {
    return "has a buffer_hook, which does not know who has inputs";
  }
  for (const auto& item : inner_->named_modules()) {
    const auto* norm = item.value()->as<SyncBatchNormImpl>();
    if (norm != nullptr && norm->is_training()) {
      return "has the SyncBatchNorm " + item.key() + " in training mode";
    }
  }
  return "";
}

void DistributedDataParallelBase::before_forward() {
  if (auto* progress = detail::progress_file()) {
    progress->note_forward();
  }
  reduces_ = false;
  if (!reducer_ || !c10::GradMode::is_enabled()) {
    return;
  }
  TORCH_CHECK(!detail::SegmentScope::is_entered(),
              "Expected the forward of DistributedDataParallel outside of "
              "checkpoint_activations, but got it inside; checkpoint parts of "
              "the wrapped module instead");
  check_frozen();
  if (join() != nullptr && join()->options().throw_on_early_termination()) {
    join()->announce(*this);
    join()->done(*this);
  }
  reduces_ = !is_sync_paused();
  if (reduces_) {
    reducer_->arm();
  } else {
    reducer_->disarm();
  }
}

void DistributedDataParallelBase::pause() {
  ++pauses_;
  if (reducer_) {
    reducer_->expect_local_passes();
  }
}

void DistributedDataParallelBase::check_frozen() const {
  for (const auto& [name, tensor, sparse] : frozen_) {
    TORCH_CHECK(!tensor.requires_grad(),
                "Expected parameter ",
                name,
                " to stay frozen, as it was when the module was wrapped, but "
                "it requires a gradient now; make a new "
                "DistributedDataParallel on every rank to train it");
  }
}

std::vector<torch::Tensor> DistributedDataParallelBase::parameters(
    bool recurse) const {
  return detail::tensors_of(detail::unique(named_parameters(recurse)));
}

void DistributedDataParallelBase::watch(const torch::Tensor& output) {
  if (reduces_) {
    reducer_->watch(output);
  }
}

void DistributedDataParallelBase::to(torch::Device, torch::Dtype, bool) {
  refuse_conversion();
}

void DistributedDataParallelBase::to(torch::Dtype, bool) {
  refuse_conversion();
}

void DistributedDataParallelBase::to(torch::Device, bool) {
  refuse_conversion();
}

void DistributedDataParallelBase::save(
    torch::serialize::OutputArchive& archive) const {
  inner_->save(archive);
}

void DistributedDataParallelBase::load(
    torch::serialize::InputArchive& archive) {
  inner_->load(archive);
}

void DistributedDataParallelBase::pretty_print(std::ostream& stream) const {
  stream << "ddp::DistributedDataParallel";
}

}  // namespace ddp
