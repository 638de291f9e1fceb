#include "ddp/wrap/distributed_data_parallel.h"

#include <functional>
#include <optional>
#include <typeinfo>
#include <utility>

#include <c10/core/GradMode.h>
#include <c10/util/Type.h>

#include "ddp/base/job_files/progress_file.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/exchanges/shared_memory_all_reduce.h"
#include "ddp/job/current_job.h"
#include "ddp/job/peers.h"
#include "ddp/job/state_sync.h"
#include "ddp/nn/sync_batch_norm.h"
#include "ddp/shard/operator_watch.h"
#include "ddp/tensors/renormed_embedding.h"
#include "ddp/wrap/detail/buffer_sync.h"
#include "ddp/wrap/detail/wrapped_module.h"

namespace ddp {
namespace {

[[noreturn]] void refuse_conversion(const std::string& wrapper) {
  TORCH_CHECK(false,
              "Expected to() on a module that is not wrapped yet, but got it "
              "on ",
              wrapper,
              "; convert the module, then wrap it");
}

/// The group of this rank alone over which an exchange runs.
c10::intrusive_ptr<c10d::Backend> group_alone(
    const c10::intrusive_ptr<c10d::Backend>& asked) {
  auto group = detail::group_or_all(asked);
  TORCH_CHECK(group,
              "Expected a process group beside an exchange of the program, but "
              "got none; call ddp::init_process_group(), which also makes a "
              "group of one rank, or leave out the exchange");
  return group;
}

/// Returns the SyncBatchNorm layers that belong to the wrapper of `module`.
std::vector<SyncBatchNormImpl*> norms_of(
    const torch::nn::Module& module,
    const c10::intrusive_ptr<c10d::Backend>& group) {
  std::vector<SyncBatchNormImpl*> norms;
  for (const auto& layer : module.modules()) {
    auto* norm = layer->as<SyncBatchNormImpl>();
    if (norm != nullptr && norm->follows(group)) {
      norms.push_back(norm);
    }
  }
  return norms;
}

std::string max_norm_problem(const torch::nn::Module& module,
                             const std::set<std::string>& ignored) {
  const auto name = detail::renormed_embedding(module, ignored);
  return name.empty()
             ? ""
             : "Expected embeddings without max_norm, because a forward "
               "renormalises the rows of its own rank alone, but got " +
                   name +
                   " with it; leave max_norm out, and call "
                   "weight.renorm_(2, 0, max_norm) under a NoGradGuard after "
                   "each step of the optimizer";
}

template <typename T>
std::string text_of(const std::optional<T>& value) {
  return value ? c10::str(*value) : "unset";
}

void check_precision(const char* option, std::optional<c10::ScalarType> dtype) {
  TORCH_CHECK(!dtype || *dtype == c10::kBFloat16 || *dtype == c10::kHalf ||
                  *dtype == c10::kFloat || *dtype == c10::kDouble,
              "Expected ",
              option,
              " of mixed_precision to be kBFloat16, kHalf, kFloat or kDouble, "
              "but got ",
              *dtype);
}

/// Returns the exchange that the program asks for: its `own` one, a
/// `CastExchange` for a reduce_dtype if this rank has peers, or null.
std::shared_ptr<Exchange> choose_exchange(
    const MixedPrecision& precision,
    std::shared_ptr<Exchange> own,
    const c10::intrusive_ptr<c10d::Backend>& group) {
  check_precision("reduce_dtype", precision.reduce_dtype());
  check_precision("buffer_dtype", precision.buffer_dtype());
  const auto dtype = precision.reduce_dtype();
  TORCH_CHECK(!own || !dtype,
              "Expected mixed_precision without a reduce_dtype beside an "
              "exchange of one's own, but got ",
              *dtype,
              "; put a CastExchange around that exchange");
  if (own || !dtype || !group) {
    return own;
  }
  return std::make_shared<CastExchange>(group, *dtype);
}

std::shared_ptr<Exchange> exchange_over(
    const c10::intrusive_ptr<c10d::Backend>& group) {
  return detail::is_gloo_group_of_job(*group)
             ? std::make_shared<SharedMemoryAllReduce>(group)
             : nullptr;
}

}  // namespace

/// State of a backward pass, kept alive by the reducer. The wrapper may be
/// destroyed while a pass runs.
struct DistributedDataParallelBase::Pass {
  DistributedDataParallelBase* wrapper;  // null after its destruction
  c10::intrusive_ptr<c10d::Backend> group;
  detail::ModuleRecord modules;
  std::optional<detail::BufferSync> buffers;  // none without broadcast_buffers
  int buffer_source = 0;

  Join* join() const { return wrapper ? wrapper->join() : nullptr; }

  /// Returns the number of ranks over which the pass averages.
  int begin() {
    if (wrapper) {
      wrapper->check_parameters();
    }
    buffer_source = 0;
    if (join() == nullptr || join()->options().throw_on_early_termination()) {
      return group->getSize();
    }
    const auto turn = join()->announce(*wrapper);
    buffer_source = turn.last_live();
    return turn.divisor;
  }

  void end() const {
    if (buffers) {
      buffers->sync(buffer_source, *group);
    }
    if (join() != nullptr) {
      join()->done(*wrapper);
    }
  }
};

DistributedDataParallelBase::~DistributedDataParallelBase() {
  if (pass_) {
    pass_->wrapper = nullptr;
  }
}

DistributedDataParallelBase::DistributedDataParallelBase(
    const DistributedDataParallelOptions& options, const char* name)
    : torch::nn::Module(name),
      options_(options),
      group_(detail::known_peers(options.process_group(), name)),
      ignored_(options.params_and_buffers_to_ignore().begin(),
               options.params_and_buffers_to_ignore().end()) {
  TORCH_CHECK(!options.buffer_hook() || options.broadcast_buffers(),
              "Expected broadcast_buffers with a buffer_hook, but got it off; "
              "leave out one of them");
}

void DistributedDataParallelBase::synchronize(torch::nn::Module& module) {
  inner_ = &module;
  const auto found = detail::list_tensors(module, ignored_);
  for (const auto& item : found.parameters) {
    (item.tensor.requires_grad() ? trained_ : frozen_).push_back(item);
  }
  TORCH_CHECK(!trained_.empty(),
              "Expected a module with at least one parameter that requires a "
              "gradient",
              ignored_.empty() ? "" : " and is not ignored",
              ", but it has none; it needs no ",
              name());
  device_ = trained_.front().tensor.device();
  ignored_parameters_ =
      std::make_unique<detail::IgnoredParameters>(found.ignored);
  set_precision(found);
  if (group_) {
    detail::verify_and_broadcast(*group_,
                                 device_,
                                 found,
                                 compared_options(group_, options_.exchange()),
                                 options_.init_sync(),
                                 refuses_module(found),
                                 moves_module());
  }
  share_group(group_, group_of_norms(options_.process_group()));
  if (group_) {
    if (!exchange_) {
      exchange_ = default_exchange(found);
      device_ = trained_.front().tensor.device();
    }
    make_reducer(group_, exchange_);
  } else if (exchange_) {
    make_reducer(group_alone(options_.process_group()), exchange_);
  }
}

std::string DistributedDataParallelBase::refuses_module(
    const detail::WrappedModule& found) const {
  for (const auto& [name, tensor, sparse] : found.parameters) {
    if (detail::watched_storage_of(tensor) != nullptr) {
      return "Expected a module that is wrapped once, but " + name +
             " is one of a FullyShardedDataParallel";
    }
  }
  return max_norm_problem(*inner_, ignored_);
}

std::shared_ptr<Exchange> DistributedDataParallelBase::default_exchange(
    const detail::WrappedModule& /*found*/) {
  return exchange_over(group_);
}

void DistributedDataParallelBase::make_reducer(
    const c10::intrusive_ptr<c10d::Backend>& group,
    const std::shared_ptr<Exchange>& exchange) {
  reducer_ = std::make_unique<Reducer>(
      trained_,
      group,
      DistributedDataParallelOptions(options_).exchange(exchange));
  pass_ = std::make_shared<Pass>(Pass{this, group, {*inner_, ignored_}, {}});
  PassFunctions functions;
  functions.ranks = [pass = pass_] { return pass->begin(); };
  functions.at_end = [pass = pass_] { pass->end(); };
  if (options_.broadcast_buffers()) {
    pass_->buffers.emplace(pass_->modules, options_.buffer_hook());
    functions.is_asked = [pass = pass_] {
      return pass->buffers->has_changed();
    };
    functions.compare = [pass = pass_] {
      pass->buffers->compare(*pass->group);
    };
  }
  reducer_->set_functions(std::move(functions));
  reducer_->release();  // no graph of it exists
  reducer_->share_pauses(pauses_);
}

std::vector<std::string> DistributedDataParallelBase::compared_options(
    const c10::intrusive_ptr<c10d::Backend>& ranks,
    const std::shared_ptr<Exchange>& exchange) const {
  std::vector<std::string> lines;
  const auto add = [&lines](const char* name, const std::string& value) {
    lines.push_back(c10::str("option ", name, " is ", value));
  };
  const auto add_switch = [&add](const char* name, bool is_on) {
    add(name, is_on ? "true" : "false");
  };
  add_switch("find_unused_parameters", options_.find_unused_parameters());
  add_switch("static_graph", options_.static_graph());
  add_switch("broadcast_buffers", options_.broadcast_buffers());
  add("buffer_hook", options_.buffer_hook() ? "set" : "unset");
  add_switch("init_sync", options_.init_sync());
  const auto& precision = options_.mixed_precision();
  add("reduce_dtype of mixed_precision", text_of(precision.reduce_dtype()));
  add("buffer_dtype of mixed_precision", text_of(precision.buffer_dtype()));
  add("the number of SyncBatchNorm layers without a group of their own",
      std::to_string(norms_of(*inner_, ranks).size()));
  const auto* own = exchange.get();
  add("exchange",
      own != nullptr ? "a " + c10::demangle(typeid(*own).name()) : "unset");
  return lines;
}

/// Calls the same collectives as the constructor, because new ranks construct
/// their wrapper at the same time.
void DistributedDataParallelBase::update_process_group(
    const c10::intrusive_ptr<c10d::Backend>& group,
    std::shared_ptr<Exchange> exchange) {
  const auto refusal = refuses_group(group, exchange);
  const auto next = detail::peers(group);
  TORCH_CHECK(next || refusal.empty(), refusal);
  if (next) {
    detail::verify_and_broadcast(*next,
                                 device_,
                                 detail::list_tensors(*inner_, ignored_),
                                 compared_options(next, exchange),
                                 options_.init_sync(),
                                 refusal);
  }
  const auto norms = group_of_norms(group);
  exchange =
      choose_exchange(options_.mixed_precision(), std::move(exchange), next);
  if (next && !exchange) {
    exchange = exchange_over(next);
  }
  const auto reduced = next || !exchange ? next : group_alone(group);
  if (reduced && reducer_) {
    reducer_->change_group(reduced, exchange);
    pass_->group = reduced;
  } else if (reduced) {
    make_reducer(reduced, exchange);
  } else if (reducer_) {
    reducer_->release();
    reducer_.reset();
  }
  group_ = next;
  share_group(next, norms);
  exchange_ = std::move(exchange);
}

void DistributedDataParallelBase::clone_(
    torch::nn::Module& /*other*/,
    const std::optional<torch::Device>& /*device*/) {
  TORCH_CHECK(false,
              "Expected clone() of a module without a ",
              name(),
              " inside, but got one with it; clone the inner module, then wrap "
              "it");
}

/// Returns the group for the wrapper's SyncBatchNorm layers: a second group of
/// the same ranks, because the order of the layers' and the gradients'
/// collectives may differ between ranks.
c10::intrusive_ptr<c10d::Backend> DistributedDataParallelBase::group_of_norms(
    const c10::intrusive_ptr<c10d::Backend>& group) const {
  const auto ranks = detail::peers(group);
  const auto sibling = ranks && !norms_of(*inner_, ranks).empty()
                           ? detail::sibling_group(*ranks, "sync_batch_norm")
                           : nullptr;
  return sibling ? sibling : group;
}

void DistributedDataParallelBase::share_group(
    const c10::intrusive_ptr<c10d::Backend>& ranks,
    const c10::intrusive_ptr<c10d::Backend>& group_of_norms) {
  for (auto* norm : norms_of(*inner_, ranks)) {
    norm->follow_process_group(group_of_norms);
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

std::string DistributedDataParallelBase::refuses_recording() const {
  if (options_.buffer_hook()) {
    return "Expected a model without a buffer_hook, whose calls are not known "
           "to be the same in each step, but got one with it";
  }
  return reducer_ ? reducer_->refuses_recording() : "";
}

void DistributedDataParallelBase::set_precision(
    const detail::WrappedModule& found) {
  const auto& precision = options_.mixed_precision();
  exchange_ = choose_exchange(precision, options_.exchange(), group_);
  for (const auto& buffer : detail::tensors_of(found.buffers)) {
    if (precision.buffer_dtype() && buffer.is_floating_point()) {
      buffer.set_data(buffer.to(*precision.buffer_dtype()));
    }
  }
}

void DistributedDataParallelBase::take_part(const JoinTurn& turn) {
  pass_->buffer_source = turn.last_live();
  reducer_->shadow_pass(turn.divisor);
}

/// Broadcasts frozen parameters, too, because rank `source` may have changed
/// them.
void DistributedDataParallelBase::end_join(int source) {
  if (!group_) {
    return;  // alone, in a Join beside others
  }
  for (const auto& tensors :
       {inner_->named_parameters(), inner_->named_buffers()}) {
    detail::broadcast_from(
        source,
        *group_,
        detail::tensors_of(detail::distinct_tensors(tensors, ignored_)));
  }
}

std::string DistributedDataParallelBase::refuses_join() const {
  if (options_.buffer_hook()) {
    return "has a buffer_hook, which does not know the ranks with inputs";
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
  if (!c10::GradMode::is_enabled() || !reducer_) {
    return;
  }
  check_parameters();
  if (join() != nullptr && join()->options().throw_on_early_termination()) {
    join()->announce(*this);
    join()->done(*this);
  }
  reducer_->before_forward();
}

/// Each rank would train a parameter alone that the reducer does not have.
void DistributedDataParallelBase::check_parameters() const {
  pass_->modules.update();
  for (const auto& [name, tensor, sparse] : frozen_) {
    TORCH_CHECK(!tensor.requires_grad(),
                "Expected parameter ",
                name,
                " to stay frozen, as it was when the module was wrapped, but "
                "it requires a gradient now; make a new wrapper on every rank "
                "to train it");
  }
}

std::vector<torch::Tensor> DistributedDataParallelBase::parameters(
    bool recurse) const {
  return detail::tensors_of(
      detail::distinct_tensors(named_parameters(recurse)));
}

void DistributedDataParallelBase::to(torch::Device, torch::Dtype, bool) {
  refuse_conversion(name());
}

void DistributedDataParallelBase::to(torch::Dtype, bool) {
  refuse_conversion(name());
}

void DistributedDataParallelBase::to(torch::Device, bool) {
  refuse_conversion(name());
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
  stream << "ddp::" << name();
}

}  // namespace ddp
