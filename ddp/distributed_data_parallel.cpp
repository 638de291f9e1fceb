#include "ddp/distributed_data_parallel.h"

#include <functional>
#include <set>

#include <c10/core/GradMode.h>
#include <torch/nn/modules/embedding.h>

#include "ddp/detail/activations/replay_state.h"
#include "ddp/detail/amp/precision_of_wrapper.h"
#include "ddp/detail/job_files/progress_file.h"
#include "ddp/detail/named_tensors.h"
#include "ddp/detail/peers.h"
#include "ddp/detail/state_sync.h"
#include "ddp/nn/script_module.h"
#include "ddp/nn/sync_batch_norm.h"
#include "ddp/process_group.h"

namespace ddp {
namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;

/// The weights of layers that were made with sparse(true).
std::set<const c10::TensorImpl*> sparse_weights(torch::nn::Module& module) {
  std::set<const c10::TensorImpl*> weights;
  for (const auto& child : module.modules()) {
    if (const auto* layer = child->as<torch::nn::EmbeddingImpl>();
        layer && layer->options.sparse()) {
      weights.insert(layer->weight.unsafeGetTensorImpl());
    }
    if (const auto* layer = child->as<torch::nn::EmbeddingBagImpl>();
        layer && layer->options.sparse()) {
      weights.insert(layer->weight.unsafeGetTensorImpl());
    }
  }
  return weights;
}

/// Of every module the buffers that it has now, from a rank's.
std::function<void(int)> buffer_broadcast(
    Group group,
    torch::nn::Module& module,
    const std::set<std::string>& ignored) {
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>
      owners;
  for (const auto& item : module.named_modules()) {
    if (!item.value()->buffers(/*recurse=*/false).empty()) {
      owners.emplace_back(item.key().empty() ? "" : item.key() + ".",
                          item.value());
    }
  }
  if (owners.empty()) {
    return {};
  }
  return [group = std::move(group), owners = std::move(owners), ignored](
             int source) {
    detail::NamedTensors all;
    for (const auto& [prefix, owner] : owners) {
      for (const auto& item : owner->named_buffers(/*recurse=*/false)) {
        all.insert(prefix + item.key(), item.value());
      }
    }
    detail::broadcast_from(
        source, *group, detail::tensors_of(detail::unique(all, ignored)));
  };
}

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
               options.params_and_buffers_to_ignore().end()) {}

void DistributedDataParallelBase::synchronize(torch::nn::Module& module) {
  inner_ = &module;
  detail::check_ignored(
      ignored_, module.named_parameters(), module.named_buffers());
  auto parameters = detail::unique(module.named_parameters(), ignored_);
  const auto buffers = detail::unique(module.named_buffers(), ignored_);
  const auto sparse = sparse_weights(module);
  std::vector<NamedParameter> trained;
  for (auto& item : parameters) {
    item.sparse = sparse.count(item.tensor.unsafeGetTensorImpl()) > 0;
    (item.tensor.requires_grad() ? trained : frozen_).push_back(item);
  }
  TORCH_CHECK(!trained.empty(),
              "Expected a module with at least one parameter that requires a "
              "gradient",
              ignored_.empty() ? "" : " and is not ignored",
              ", but it has none; it needs no DistributedDataParallel");
  device_ = trained.front().tensor.device();
  set_precision(parameters, buffers);
  if (!group_) {
    return;
  }
  auto specs = detail::describe_all(parameters, buffers);
  auto tensors = detail::tensors_of(parameters);
  for (const auto& buffer : buffers) {
    tensors.push_back(buffer.tensor);
  }
  detail::number_devices(specs, tensors);
  detail::verify_across_ranks(*group_, device_, specs);
  if (options_.init_sync()) {
    detail::broadcast_from(0, *group_, detail::tensors_of(parameters));
    detail::broadcast_from(0, *group_, detail::tensors_of(buffers));
  }
  reducer_ = std::make_unique<Reducer>(std::move(trained), group_, options_);
  const auto broadcast = options_.broadcast_buffers()
                             ? buffer_broadcast(group_, module, ignored_)
                             : nullptr;
  reducer_->mean_over([this] { return begin_turn(); });
  reducer_->on_pass([this, broadcast] {
    if (broadcast) {
      broadcast(buffer_source_);
    }
    if (join() != nullptr) {
      join()->done(*this);
    }
  });
}

void DistributedDataParallelBase::set_precision(
    const std::vector<NamedParameter>& parameters,
    const std::vector<NamedParameter>& buffers) {
  const auto& precision = options_.mixed_precision();
  options_.exchange(
      detail::exchange_in(precision, options_.exchange(), group_));
  if (precision.param_dtype()) {
    check_no_script(*inner_);
    casts_ = std::make_shared<detail::ParameterCasts>(
        detail::tensors_of(parameters), *precision.param_dtype());
  }
  detail::cast_buffers(precision, detail::tensors_of(buffers));
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
  const auto& exchange = options_.exchange();
  const int among = exchange ? exchange->fewest_ranks() : 0;
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
  for (const auto& item : inner_->named_modules()) {
    if (item.value()->as<SyncBatchNormImpl>() != nullptr) {
      return "has the SyncBatchNorm " + item.key();
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
