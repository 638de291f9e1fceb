#include "ddp/reduce/reducer.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <typeinfo>
#include <utility>

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/graph_task.h>

#include "ddp/base/job_files/progress_file.h"
#include "ddp/base/text/rank_text.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/exchanges/no_exchange.h"
#include "ddp/job/error_text.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/peers.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"
#include "ddp/reduce/detail/autograd_hooks.h"
#include "ddp/reduce/detail/reducer_impl.h"
#include "ddp/tensors/streams.h"

namespace ddp {
namespace detail {
namespace {

bool in_backward_pass() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

std::vector<NamedParameter> checked_leaves(
    std::vector<NamedParameter> parameters) {
  TORCH_CHECK(!parameters.empty(),
              "Expected at least one parameter that requires a gradient, but "
              "got none; without one the module needs no wrapper");
  for (const auto& [name, tensor, sparse] : parameters) {
    TORCH_CHECK(tensor.requires_grad() && tensor.is_leaf(),
                "Expected parameter ",
                name,
                " to be a leaf that requires a gradient, but it is not");
  }
  return parameters;
}

/// @throws c10::Error if the exchange refuses sparse gradients and a parameter
///   has one.
std::vector<NamedParameter> checked_for(std::vector<NamedParameter> parameters,
                                        const Exchange& exchange) {
  const auto refusal = exchange.refuses_sparse();
  for (const auto& [name, tensor, sparse] : parameters) {
    TORCH_CHECK(
        !sparse || refusal.empty(),
        refusal,
        ", but got the sparse parameter ",
        name,
        "; make its layer with sparse(false), or use AllReduce over Gloo");
  }
  return parameters;
}

BucketCaps bucket_caps_of(const DistributedDataParallelOptions& options,
                          const c10d::Backend& group) {
  const auto to_bytes = [](double mebibytes) {
    return static_cast<int64_t>(mebibytes * 1024 * 1024);
  };
  const auto& cap = options.bucket_cap_mb();
  TORCH_CHECK(
      cap.value_or(1) > 0 && options.first_bucket_cap_mb() > 0,
      "Expected bucket_cap_mb and first_bucket_cap_mb to be positive, but got ",
      cap ? c10::str(*cap) : "none",
      " and ",
      options.first_bucket_cap_mb());
  return {to_bytes(options.first_bucket_cap_mb()),
          cap ? to_bytes(*cap)
              : default_bucket_cap(group.getBackendName(), group.getSize())};
}

/// @param exchange  lives as long as the buckets.
/// @param consumer  the exchange, if it is one; else null.
BucketLayout bucket_layout_of(Exchange& exchange,
                              BucketConsumer* consumer,
                              const std::vector<NamedParameter>& parameters,
                              int ranks,
                              int64_t spare_numel,
                              bool keeps_memory) {
  return {spare_numel,
          carries_marks(exchange, ranks),
          keeps_memory,
          [&exchange](int64_t numel, const at::TensorOptions& options) {
            return exchange.allocate(numel, options);
          },
          consumer == nullptr ? std::vector<PrescribedBucket>()
                              : consumer->prescribe_buckets(parameters)};
}

/// Returns the number of a new reducer in a group of the job.
int next_number(c10d::Backend& group) {
  auto* job = monitored_backend_of(group);
  return job == nullptr ? 0 : job->number_reducer();
}

/// The vote of the job if all its ranks make the passes.
std::shared_ptr<StopVote> vote_of(const c10d::Backend& group) {
  const auto* job = monitored_backend_of(group);
  if (job == nullptr || job->members().name != kWorldGroup) {
    return std::make_shared<StopVote>();
  }
  return {job->record(), &job->record()->stop_vote()};
}

/// Allows only classes that make the same calls in each pass and do not wait on
/// the host. Refuses derived classes, which may do anything.
std::string refuses_recording(const Exchange& exchange) {
  const auto& type = typeid(exchange);
  if (type == typeid(CastExchange)) {
    return refuses_recording(
        static_cast<const CastExchange&>(exchange).inner());
  }
  return type == typeid(AllReduce) || type == typeid(NoExchange)
             ? ""
             : "Expected AllReduce, a CastExchange around it or NoExchange as "
               "the exchange of a recorded step, but got " +
                   c10::demangle(type.name());
}

DistributedDataParallelOptions checked_options(
    const DistributedDataParallelOptions& options) {
  TORCH_CHECK(
      !options.find_unused_parameters() || !options.static_graph(),
      "Expected find_unused_parameters or static_graph, but got both; the "
      "second where all passes leave out the same parameters, else the first");
  return options;
}

}  // namespace

GroupReduction::GroupReduction(std::vector<NamedParameter> parameters,
                               c10::intrusive_ptr<c10d::Backend> its_group,
                               const DistributedDataParallelOptions& options)
    : group(required_group(std::move(its_group))),
      number(next_number(*group)),
      marks(make_pass_marks(parameters.front().tensor.device().type())),
      exchange(options.exchange() ? options.exchange()
                                  : std::make_shared<AllReduce>(group)),
      consumer(dynamic_cast<BucketConsumer*>(&*exchange)),
      buckets(checked_for(parameters, *exchange),
              bucket_caps_of(options, *group),
              bucket_layout_of(*exchange,
                               consumer,
                               parameters,
                               group->getSize(),
                               marks->numel(),
                               options.gradient_as_bucket_view())),
      peers(peer_state_of(*group)),
      vote(vote_of(*group)),
      is_recording(consumer == nullptr) {
  if (options.find_unused_parameters() || options.static_graph()) {
    used_map.emplace(buckets.size(), buckets.spare().device());
  }
  if (options.static_graph()) {
    static_graph.emplace(buckets.size());
  }
}

ReducerImpl::ReducerImpl(std::vector<NamedParameter> parameters,
                         c10::intrusive_ptr<c10d::Backend> group,
                         const DistributedDataParallelOptions& options)
    : pauses(std::make_shared<std::atomic<int>>(0)),
      options_(checked_options(options)),
      reduction_(std::make_unique<GroupReduction>(
          checked_leaves(parameters), std::move(group), options)) {
  options_.exchange(nullptr);
  hooks_ = std::make_unique<GradHooks>(std::move(parameters),
                                       [this](size_t index, bool is_untouched) {
                                         on_gradient(index, is_untouched);
                                       });
}

/// Announces nothing during stack unwinding: the text of the exception follows.
ReducerImpl::~ReducerImpl() {
  if (was_left() && std::uncaught_exceptions() == 0) {
    fail("an exception has left its backward pass");
  }
}

void ReducerImpl::before_forward() {
  const std::lock_guard lock(mutex_);
  check_usable();
  if (is_open()) {
    return;  // a computation within the pass, such as a checkpoint's
  }
  hooks_->claim();
  const auto* consumer = reduction_->consumer;
  for (size_t i = 0; consumer != nullptr && i < buckets().size(); ++i) {
    if (!hooks_->has_local(i)) {
      consumer->check_gradient(i);
    }
  }
  hooks_->needed_by_graph(true);
  forward_thread_.reset();
  if (!in_backward_pass()) {
    forward_thread_ = std::this_thread::get_id();
  }
}

void ReducerImpl::set_functions(PassFunctions functions) {
  const std::lock_guard lock(mutex_);
  functions_ = std::move(functions);
}

void ReducerImpl::release() {
  const std::lock_guard lock(mutex_);
  hooks_->needed_by_graph(false);
}

std::shared_ptr<const void> ReducerImpl::hold_memory() {
  const std::lock_guard lock(mutex_);
  check_usable();
  TORCH_CHECK(!is_open() && !reduction_->is_recording,
              "Expected hold_memory after a first backward pass, which plans "
              "the buckets, and between two passes, but got it ",
              is_open() ? "in a pass" : "before");
  return buckets().hold_memory();
}

bool ReducerImpl::is_in_pass() {
  const std::lock_guard lock(mutex_);
  return is_open() && !was_left();
}

/// Drops a pass that an exception has left: it belongs to the old group.
void ReducerImpl::change_group(c10::intrusive_ptr<c10d::Backend> group,
                               std::shared_ptr<Exchange> exchange) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(!is_open() || was_left(),
              "Expected another group between backward passes, but got it "
              "while one is reduced; change it when backward() has returned");
  std::vector<NamedParameter> parameters;
  for (size_t i = 0; i < buckets().size(); ++i) {
    parameters.push_back(buckets().parameter(i));
  }
  auto options = options_;
  options.exchange(std::move(exchange));
  auto next = std::make_unique<GroupReduction>(
      std::move(parameters), std::move(group), options);
  if (is_open()) {
    end_pass();
  }
  reduction_ = std::move(next);
  state_ = State::idle;
  error_.clear();
}

/// Returns true if an exception has left the open pass before its end.
bool ReducerImpl::was_left() const {
  return (state_ == State::collecting && end_.expired()) ||
         (state_ == State::detached && !in_backward_pass());
}

void ReducerImpl::check_usable() {
  if (was_left()) {
    fail("an exception has left its backward pass");
  }
  TORCH_CHECK(state_ != State::broken, error_);
}

/// Ends training in this group: drops the pass, announces the reason to the
/// other ranks, and closes the group of a job.
void ReducerImpl::fail(const std::string& text) noexcept {
  state_ = State::broken;
  error_ = c10::str("rank ",
                    reduction_->group->getRank(),
                    ": Expected every rank to finish its backward passes, but "
                    "one has failed on this rank: ",
                    first_line(text),
                    ". The ranks are no longer in step: start again from a "
                    "checkpoint, or give the model another group "
                    "(update_process_group, or a new wrapper)");
  end_pass();
  reduction_->exchange->abandon();
  abort_and_announce(*reduction_->group, text);
}

template <typename Work>
auto ReducerImpl::or_fail(const Work& work) {
  try {
    return work();
  } catch (...) {
    fail(text_of(std::current_exception()));
    throw;
  }
}

void ReducerImpl::on_gradient(size_t index, bool is_untouched) {
  const std::lock_guard lock(mutex_);
  if (*pauses > 0) {
    hooks_->record_local(index);
    hooks_->needed_by_graph(false);
    if (reduction_->consumer != nullptr) {
      reduction_->consumer->keep_local(index);
    }
    return;
  }
  check_usable();
  if (!is_open()) {
    open(buckets().parameter(index).tensor.device());
  }
  expect_end();
  const c10::NoGradGuard no_grad;
  or_fail([&] {
    TORCH_CHECK(is_untouched,
                "Expected the program's post-accumulate-grad hook of ",
                buckets().parameter(index).name,
                " to leave the parameter as it is and .grad defined, because "
                "the gradient is averaged after the hook, but got a changed "
                "parameter or an undefined .grad; step when backward() has "
                "returned");
    add(index);
  });
}

void ReducerImpl::open(at::Device device) {
  auto averaged_pass = or_fail([&] {
    const auto* foreign = hooks_->first_foreign();
    TORCH_CHECK(
        foreign == nullptr,
        "Expected parameter ",
        foreign->name,
        " to be trained by the DistributedDataParallel (or Reducer) whose "
        "forward came last, but got a backward pass of another one that shares "
        "it; make the backward pass of each before the forward of the next, or "
        "wrap one module that has all of their parameters and whose forward() "
        "calls its parts");
    auto* job = monitored_backend_of(*reduction_->group);
    const int task = torch::autograd::get_current_graph_task_id();
    return job == nullptr ? nullptr : job->begin_pass({forward_thread_, task});
  });
  if (c10::GradMode::is_enabled()) {
    TORCH_WARN_ONCE(
        "backward() with create_graph: gradients of gradients are not averaged "
        "over ranks");
  }
  const int ranks =
      functions_.ranks ? functions_.ranks() : reduction_->group->getSize();
  TORCH_CHECK(
      ranks > 0,
      "Expected PassFunctions::ranks to return the number of ranks to average "
      "over, but got ",
      ranks);
  averaged_pass_ = std::move(averaged_pass);
  state_ = State::collecting;
  end_.reset();
  const c10::NoGradGuard no_grad;
  or_fail([&] { begin(ranks, device); });
}

/// Registers with the running graph task, unless it has been registered with
/// this task or one that encloses it.
void ReducerImpl::expect_end() {
  const int depth = graph_task_depth();
  if (!end_.expired() && depth >= end_depth_) {
    return;
  }
  end_depth_ = depth;
  const auto if_last = [self = shared_from_this(),
                        number = ++registrations_](auto method) {
    return [self, number, method] {
      const std::lock_guard lock(self->mutex_);
      if (number == self->registrations_ && self->state_ == State::collecting) {
        ((*self).*method)();
      }
    };
  };
  end_ = at_end_of_pass(
      {if_last(&ReducerImpl::complete), if_last(&ReducerImpl::on_lost)});
  state_ = State::collecting;
}

void ReducerImpl::on_lost() {
  if (buckets().expected().empty()) {
    complete();
  } else {
    state_ = State::detached;
  }
}

void ReducerImpl::begin(int ranks, std::optional<at::Device> device) {
  auto& all = *reduction_;
  if (all.consumer != nullptr) {
    all.consumer->begin_pass();
  }
  all.buckets.begin(device);
  all.buckets.set_scale(all.exchange->scale(ranks));
  if (!records_) {
    all.peers->note_pass();
    ++all.passes;
  }
  fill_known();
}

void ReducerImpl::shadow_pass(int ranks) {
  const std::lock_guard lock(mutex_);
  check_usable();
  forward_thread_ = std::this_thread::get_id();
  for (size_t i = 0; i < buckets().size(); ++i) {
    buckets().parameter(i).tensor.mutable_grad().reset();
  }
  const c10::NoGradGuard no_grad;
  or_fail([&] {
    if (auto* job = monitored_backend_of(*reduction_->group)) {
      averaged_pass_ = job->begin_pass({forward_thread_, -1});
    }
    is_shadow_ = true;
    begin(ranks, std::nullopt);
  });
  complete();
}

std::string ReducerImpl::refuses_recording() {
  const std::lock_guard lock(mutex_);
  const auto& all = *reduction_;
  if (options_.find_unused_parameters()) {
    return "Expected a model without find_unused_parameters, because the ranks "
           "exchange on the host what they have used, but got one with it; "
           "set static_graph where each pass leaves out the same parameters";
  }
  if (all.group->getBackendName() != "nccl") {
    return "Expected a group over NCCL, but got one over " +
           all.group->getBackendName();
  }
  if (all.is_recording) {
    return "Expected a backward pass before the recording, which plans the "
           "buckets, but got none";
  }
  return detail::refuses_recording(*all.exchange);
}

void ReducerImpl::begin_recording() {
  const std::lock_guard lock(mutex_);
  check_usable();
  TORCH_CHECK(
      !is_open(),
      "Expected a recording between backward passes, but got it in one");
  // A recording cannot wait for other streams of earlier passes.
  auto& all = *reduction_;
  for (size_t i = 0; i < all.buckets.bucket_count(); ++i) {
    all.buckets.join_streams(i);
  }
  all.buckets.join_spare();
  all.marks->vote(all.vote->votes_to_stop());
  records_ = true;
  if (auto* job = monitored_backend_of(*all.group)) {
    job->begin_recording();
  }
}

std::shared_ptr<const RecordedPass> ReducerImpl::end_recording(
    const std::string& error) {
  const std::lock_guard lock(mutex_);
  records_ = false;
  auto pass = std::make_shared<RecordedPass>();
  if (auto* job = monitored_backend_of(*reduction_->group)) {
    pass->collectives = job->end_recording();
  }
  if (is_open()) {
    fail(error);
  }
  if (state_ == State::broken) {
    return nullptr;
  }
  pass->hold = buckets().hold_memory();
  return pass;
}

void ReducerImpl::replay(const RecordedPass& pass,
                         const std::function<void()>& launch) {
  const std::lock_guard lock(mutex_);
  check_usable();
  auto& all = *reduction_;
  TORCH_CHECK(buckets().hold_memory() == pass.hold,
              "Expected the group of the recorded step, but the model has got "
              "another one; call reset() of the GraphedStep");
  TORCH_CHECK(!is_open(),
              "Expected a recorded step between backward passes, but got it in "
              "one");
  or_fail([&] {
    auto* job = monitored_backend_of(*all.group);
    std::shared_ptr<const AveragedPass> averaged;
    if (job != nullptr) {
      averaged = job->begin_pass({std::this_thread::get_id(), -1});
      job->before_replay(pass.collectives);
    }
    all.peers->note_pass();
    ++all.passes;
    all.marks->vote(all.vote->votes_to_stop());
    launch();
    const auto device = buckets().spare().device();
    auto end = std::make_shared<c10::Event>(device.type());
    end->record(current_stream(device));
    if (job != nullptr) {
      job->after_replay(pass.collectives, end);
    }
    note_completed(std::move(end));
    read_marks();
  });
  hooks_->clear_local();
}

/// Reports progress only by replays that have completed: a launched replay may
/// wait for another rank for ever.
void ReducerImpl::note_completed(std::shared_ptr<c10::Event> end) {
  auto* progress = progress_file();
  if (progress == nullptr) {
    return;
  }
  if (incomplete_ && incomplete_->query()) {
    progress->note_pass();
    incomplete_.reset();
  }
  if (!incomplete_) {
    incomplete_ = std::move(end);
  }
}

/// Parameters that were frozen in the previous pass, or are never used in a
/// static graph, are filled at the beginning, so that their buckets start as
/// early as others.
void ReducerImpl::fill_known() {
  auto& frozen = reduction_->frozen;
  const auto trains = [this](size_t index) {
    return buckets().parameter(index).tensor.requires_grad();
  };
  frozen.erase(std::remove_if(frozen.begin(), frozen.end(), trains),
               frozen.end());
  for (const size_t index : frozen) {
    buckets().fill_missing(index);
  }
  const auto& graph = reduction_->static_graph;
  if (!graph || !graph->is_known() || is_shadow_) {
    return;
  }
  for (const size_t index : graph->unused()) {
    if (!buckets().expects(index)) {
      continue;
    }
    if (!trains(index)) {
      frozen.push_back(index);
    }
    buckets().fill_missing(index);
  }
}

void ReducerImpl::add(size_t index) {
  auto& graph = reduction_->static_graph;
  if (graph && !graph->add(index)) {
    return;
  }
  // A function of the graph may leave it undefined.
  if ((options_.find_unused_parameters() || !buckets().has_bucket(index)) &&
      !has_grad(index)) {
    return;
  }
  const bool is_full = buckets().add(index);
  if (reduction_->is_recording) {
    order_.push_back(index);
  } else if (is_full) {
    start_full_buckets();
  }
}

void ReducerImpl::complete() {
  const auto guard = c10::make_scope_exit([this] { end_pass(); });
  const c10::NoGradGuard no_grad;
  auto kept = or_fail([this] { return finish(); });
  if (auto* progress = progress_file(); progress != nullptr && !records_) {
    progress->note_pass();
  }
  hooks_->needed_by_graph(false);
  hooks_->clear_local();
  buckets().assign_grads_except(kept);
  if (reduction_->consumer != nullptr) {
    or_fail([&] { reduction_->consumer->assign_except(kept); });
  }
}

/// Completes the pass with the other ranks. Returns the parameters that keep
/// their `.grad`, in ascending order.
std::vector<size_t> ReducerImpl::finish() {
  auto& all = *reduction_;
  check_graph();
  fill_expected();
  TORCH_CHECK(
      missing_.empty() || is_shadow_ || options_.find_unused_parameters() ||
          options_.static_graph(),
      "Expected every parameter to get a gradient in this backward pass, but "
      "these got none on rank ",
      all.group->getRank(),
      ": ",
      names_of(missing_),
      "; let them take part in the loss, freeze them with "
      "requires_grad_(false) from the forward to the end of backward(), or set "
      "find_unused_parameters(true), or static_graph(true) where every pass "
      "leaves out the same");
  if (all.is_recording) {
    agree_on_plan();
  }
  start_full_buckets();
  finish_buckets(all.buckets.bucket_count());
  auto kept = agree();
  if (functions_.at_end) {
    functions_.at_end();
  }
  kept.insert(kept.end(), all.never.begin(), all.never.end());
  kept.insert(kept.end(), all.frozen.begin(), all.frozen.end());
  std::sort(kept.begin(), kept.end());
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  return kept;
}

/// Drops the values of the current pass.
void ReducerImpl::end_pass() {
  buckets().reset();
  averaged_pass_.reset();
  mark_work_.reset();
  is_shadow_ = false;
  missing_.clear();
  order_.clear();
  next_ = 0;
  finished_ = 0;
  if (reduction_->static_graph) {
    reduction_->static_graph->reset();
  }
  if (state_ != State::broken) {
    state_ = State::idle;
  }
}

/// Learns a static graph in the first pass, and compares it in later ones. If
/// this rank had no inputs in the first pass of the others, it may use a
/// parameter that they have left out of the plan. An unused parameter keeps its
/// `.grad`, so it must not have a gradient of a local pass either.
void ReducerImpl::check_graph() {
  auto& graph = reduction_->static_graph;
  if (!graph || is_shadow_) {
    return;
  }
  std::string changed;
  const auto add_change = [&](size_t index, const std::string& how) {
    changed += c10::str(changed.empty() ? "" : ", ",
                        buckets().parameter(index).name,
                        " (",
                        how,
                        ")");
  };
  if (!graph->is_known()) {
    for (const size_t index : graph->learn()) {
      if (!has_grad(index)) {
        continue;
      }
      buckets().add(index);
      if (reduction_->is_recording) {
        order_.push_back(index);
      }
    }
  } else {
    for (const auto& [index, expected, came] : graph->changes()) {
      if (buckets().parameter(index).tensor.requires_grad()) {
        add_change(index, c10::str(came, " times instead of ", expected));
      }
    }
    for (const size_t index : graph->unused()) {
      if (hooks_->has_local(index)) {
        add_change(index, "in a pass that was not reduced");
      }
    }
  }
  TORCH_CHECK(
      changed.empty(),
      "Expected each gradient to come as often as in the first backward "
      "pass, which static_graph(true) promises, but these came on rank ",
      reduction_->group->getRank(),
      ": ",
      changed,
      "; let every pass use the same parameters in the same way, or "
      "leave out static_graph");
}

/// Fills the places of gradients that have not come.
void ReducerImpl::fill_expected() {
  for (const size_t index : buckets().expected()) {
    const bool trains = buckets().parameter(index).tensor.requires_grad();
    (trains ? missing_ : reduction_->frozen).push_back(index);
    TORCH_CHECK(!trains || is_shadow_ || hooks_->is_installed(index),
                "Expected post-accumulate-grad hooks to be set before the "
                "forward, but parameter ",
                buckets().parameter(index).name,
                " has got one since, in the place of the hook that averages "
                "its gradient; set hooks before the forward");
    buckets().fill_missing(index);
  }
  const auto& frozen = reduction_->frozen;
  const auto local =
      std::find_if(frozen.begin(), frozen.end(), [this](size_t index) {
        return hooks_->has_local(index);
      });
  TORCH_CHECK(local == frozen.end(),
              "Expected parameter ",
              buckets().parameter(*local).name,
              " to train in the pass that averages its gradients of passes "
              "under a NoSyncGuard, but it was frozen before, and these would "
              "stay this rank's own; freeze it after that pass, or reset its "
              ".grad");
}

/// Returns the parameters that train and that this rank has not used since the
/// last reduced pass.
std::vector<size_t> ReducerImpl::unused_here() const {
  std::vector<size_t> unused;
  std::copy_if(missing_.begin(),
               missing_.end(),
               std::back_inserter(unused),
               [this](size_t index) { return !hooks_->has_local(index); });
  return unused;
}

std::string ReducerImpl::names_of(const std::vector<size_t>& indices) const {
  std::string names;
  for (const size_t index : indices) {
    names +=
        (names.empty() ? "" : ", ") + reduction_->buckets.parameter(index).name;
  }
  return names;
}

/// Rank 0 plans by the order in which its gradients came. All gradients are in
/// buckets by now and move to the new ones. Parameters that no rank uses in a
/// static graph leave the plan.
void ReducerImpl::agree_on_plan() {
  auto& all = *reduction_;
  order_.insert(order_.end(), missing_.begin(), missing_.end());
  order_.insert(order_.end(), all.frozen.begin(), all.frozen.end());
  if (all.static_graph) {
    auto without = unused_here();
    without.insert(without.end(), all.frozen.begin(), all.frozen.end());
    all.used_map->exchange(*all.group, without);
    all.never = all.used_map->unused(*all.group);
  }
  auto numbers = at::zeros(
      {static_cast<int64_t>(all.buckets.size() - all.never.size())}, at::kLong);
  if (all.group->getRank() == 0) {
    const auto is_never = [&all](size_t index) {
      return std::binary_search(all.never.begin(), all.never.end(), index);
    };
    order_.erase(std::remove_if(order_.begin(), order_.end(), is_never),
                 order_.end());
    const auto plan = to_numbers(all.buckets.plan_for(order_));
    std::copy(plan.begin(), plan.end(), numbers.mutable_data_ptr<int64_t>());
  }
  std::vector<at::Tensor> shared{
      numbers.to(all.buckets.parameter(0).tensor.device())};
  const char* what = "broadcast of the bucket plan";
  wait(all.group->broadcast(shared), *all.group, what);
  numbers = copy_result(shared[0], c10::kCPU, *all.group, what);
  all.buckets.move_to(plan_of(
      {numbers.const_data_ptr<int64_t>(), static_cast<size_t>(numbers.numel())},
      all.buckets.size()));
  all.is_recording = false;
}

/// Starts in plan order only, so that the collectives of all ranks match.
void ReducerImpl::start_full_buckets() {
  auto& all = *reduction_;
  const size_t count = all.buckets.bucket_count();
  while (next_ < count && all.buckets.is_full(next_)) {
    // Another stream may have filled a bucket that had to wait for its turn.
    all.buckets.join_streams(next_);
    if (next_ + 1 == count) {
      write_mark();
    }
    all.exchange->start(all.buckets.bucket(next_));
    if (all.consumer != nullptr) {
      finish_buckets(next_);
    }
    if (++next_ == count && !all.buckets.spare_in_bucket() &&
        all.consumer == nullptr) {
      std::vector<at::Tensor> tensors{all.buckets.spare()};
      mark_work_ = all.group->allreduce(tensors);
    }
  }
}

/// Finishes the buckets before `end`.
void ReducerImpl::finish_buckets(size_t end) {
  auto& all = *reduction_;
  for (; finished_ < end; ++finished_) {
    all.exchange->finish(all.buckets.bucket(finished_));
    if (all.consumer != nullptr) {
      all.buckets.release(finished_);
    }
  }
}

/// A shadow pass does not know which parameters the others have frozen.
void ReducerImpl::write_mark() {
  auto& all = *reduction_;
  all.buckets.join_spare();
  if (records_) {
    all.marks->record(all.buckets.spare());
    return;
  }
  PassMark mark;
  mark.stops = all.vote->votes_to_stop();
  mark.misses = !missing_.empty() && !is_shadow_;
  mark.asks = functions_.is_asked && functions_.is_asked();
  mark.knows_hash = !is_shadow_;
  // Twice, because the sum of two numbers may be the same on all ranks.
  mark.hash = mix_hash(mix_hash(0, static_cast<size_t>(all.number)),
                       static_cast<size_t>(all.passes));
  // Branches let the ranks find them in different orders.
  std::sort(all.frozen.begin(), all.frozen.end());
  for (const size_t index : all.frozen) {
    mark.hash = mix_hash(mark.hash, index);
  }
  all.marks->write(mark, all.buckets.spare());
}

MarkSums ReducerImpl::read_marks() {
  constexpr const char* kWhat = "all-reduce of the ranks' marks";
  auto& all = *reduction_;
  const auto& spare = all.buckets.spare();
  if (mark_work_) {
    wait(std::exchange(mark_work_, nullptr), *all.group, kWhat);
    record_stream(spare);
  }
  if (all.consumer != nullptr) {
    all.consumer->sum_marks(spare);
  }
  const auto sums = all.marks->read(spare);
  check_not_aborted(*all.group, kWhat);
  all.vote->record(sums.any_stops, sums.all_stop);
  return sums;
}

/// Compares the ranks after the buckets have been exchanged. Returns the
/// parameters that no rank has used in this pass, in ascending order.
std::vector<size_t> ReducerImpl::agree() {
  auto& all = *reduction_;
  const auto sums = read_marks();
  if (sums.differs) {
    refuse_difference();
  }
  if (sums.any_asks) {
    functions_.compare();
  }
  if (!options_.find_unused_parameters() || !sums.any_misses) {
    return {};
  }
  all.used_map->exchange(*all.group, unused_here());
  return missing_.empty() ? std::vector<size_t>()
                          : all.used_map->unused(*all.group);
}

/// Collective: the sums differ on all ranks or on none.
void ReducerImpl::refuse_difference() {
  auto& all = *reduction_;
  const auto frozen = names_of(all.frozen);
  const auto mine = c10::str("pass ",
                             all.passes,
                             " of model ",
                             all.number,
                             " over the group, with ",
                             frozen.empty() ? "nothing" : frozen,
                             " frozen");
  const auto texts =
      all_gather_text(*all.group, c10::kCPU, mine, "the ranks' passes");
  TORCH_CHECK(false,
              "Expected all ranks to make the same backward pass, but they "
              "made",
              names_by_rank(texts),
              " and gradients were mixed. Change requires_grad on all ranks "
              "before the same forward, make the passes of all models in one "
              "order on all ranks, give each thread a group of its own "
              "(ddp::new_group), and start again from a checkpoint");
}

}  // namespace detail

Reducer::Reducer(std::vector<NamedParameter> parameters,
                 c10::intrusive_ptr<c10d::Backend> group,
                 const DistributedDataParallelOptions& options)
    : impl_(std::make_shared<detail::ReducerImpl>(
          std::move(parameters), std::move(group), options)) {}

Reducer::~Reducer() = default;

void Reducer::before_forward() {
  impl_->before_forward();
}

void Reducer::set_functions(PassFunctions functions) {
  impl_->set_functions(std::move(functions));
}

void Reducer::shadow_pass(int ranks) {
  impl_->shadow_pass(ranks);
}

void Reducer::release() {
  impl_->release();
}

void Reducer::change_group(c10::intrusive_ptr<c10d::Backend> group,
                           std::shared_ptr<Exchange> exchange) {
  impl_->change_group(std::move(group), std::move(exchange));
}

std::shared_ptr<const void> Reducer::hold_memory() {
  return impl_->hold_memory();
}

std::string Reducer::refuses_recording() const {
  return impl_->refuses_recording();
}

void Reducer::begin_recording() {
  impl_->begin_recording();
}

std::shared_ptr<const detail::RecordedPass> Reducer::end_recording(
    const std::string& error) {
  return impl_->end_recording(error);
}

void Reducer::replay(const detail::RecordedPass& pass,
                     const std::function<void()>& launch) {
  impl_->replay(pass, launch);
}

bool Reducer::is_in_pass() const {
  return impl_->is_in_pass();
}

std::vector<std::vector<size_t>> Reducer::plan() const {
  return impl_->plan();
}

const detail::Pauses& Reducer::pauses() const {
  return impl_->pauses;
}

void Reducer::share_pauses(detail::Pauses pauses) {
  impl_->pauses = std::move(pauses);
}

}  // namespace ddp
