#include "ddp/reduce/detail/reducer_impl.h"

#include <exception>
#include <utility>

#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/graph_task.h>

#include "ddp/base/job_files/progress_file.h"
#include "ddp/job/error_text.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/reduce/detail/end_of_pass.h"

namespace ddp::detail {
namespace {

constexpr const char* kThrown = "backward() threw it";

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

}  // namespace

ReducerImpl::ReducerImpl(std::vector<NamedParameter> parameters,
                         c10::intrusive_ptr<c10d::Backend> group,
                         const DistributedDataParallelOptions& options)
    : group_(std::move(group)),
      options_(options),
      reduction_(std::make_unique<Reduction>(
          checked_leaves(std::move(parameters)), group_, options)),
      peer_state_(peer_state_of(*group_)) {
  options_.exchange(nullptr);
  hooks_ = std::make_unique<GradHooks>(
      reduction_->parameters(), [this](size_t index) { on_grad_ready(index); });
}

ReducerImpl::~ReducerImpl() {
  // After `or_abort` there is no pass to complete.
  if (was_left() && final_error_.empty() && std::uncaught_exceptions() == 0) {
    try {
      end_left_pass();
    } catch (...) {  // the program has caught the pass's exception
    }
  }
}

void ReducerImpl::arm() {
  const std::lock_guard lock(mutex_);
  if (is_open() && in_backward_pass() && !was_left()) {
    return;
  }
  check_sound();
  if (is_open()) {
    end_left_pass();
  }
  hooks_->attach();
  forward_thread_.reset();
  if (!in_backward_pass()) {
    forward_thread_ = std::this_thread::get_id();
  }
  is_attached_ = false;  // the forward may lose hooks
  phase_ = Phase::armed;
  stays_armed_ = false;
}

void ReducerImpl::disarm() {
  const std::lock_guard lock(mutex_);
  if (!is_open()) {
    hooks_->attach();
  }
  stays_armed_ = false;
  if (phase_ == Phase::armed) {
    phase_ = Phase::idle;
  }
}

void ReducerImpl::expect_local_passes() {
  const std::lock_guard lock(mutex_);
  unsynced_warning_.stop();
}

void ReducerImpl::watch(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad() || output.is_leaf()) {
    return;
  }
  attach_hooks();
  output.register_hook([weak = weak_from_this(), is_released = is_released_](
                           const at::Tensor& /*grad*/) {
    if (const auto self = weak.lock()) {
      self->on_output_grad();
      return;
    }
    TORCH_CHECK(*is_released,
                "Expected the DistributedDataParallel (or Reducer) to live "
                "until backward() of its outputs has returned, but it was "
                "destroyed before, and the gradients would stay this rank's "
                "own; keep it");
  });
}

/// At the end of the forward every parameter that it used has its final node.
void ReducerImpl::attach_hooks() {
  const std::lock_guard lock(mutex_);
  if (!is_open() && !std::exchange(is_attached_, true)) {
    hooks_->attach();
  }
}

void ReducerImpl::release() {
  *is_released_ = true;
}

void ReducerImpl::on_pass(std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  on_pass_ = std::move(action);
}

void ReducerImpl::mean_over(std::function<int()> ranks) {
  const std::lock_guard lock(mutex_);
  mean_over_ = std::move(ranks);
}

void ReducerImpl::shadow_pass(int ranks) {
  const std::lock_guard lock(mutex_);
  check_sound();
  check_not_left();
  forward_thread_ = std::this_thread::get_id();
  averaged_pass_ = begin_averaged_pass(-1);
  peer_state_->note_pass();
  reduction_->begin_shadow(ranks);
  close();
}

void ReducerImpl::forget_steps() {
  const std::lock_guard lock(mutex_);
  reduction_->forget_steps();
}

/// A pass that an exception has left belongs to the old group and is dropped.
void ReducerImpl::change_group(c10::intrusive_ptr<c10d::Backend> group,
                               std::shared_ptr<Exchange> exchange) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(!is_open() || was_left(),
              "Expected another group between backward passes, but got it "
              "while one is reduced; change it when backward() has returned");
  auto options = options_;
  options.exchange(std::move(exchange));
  auto next =
      std::make_unique<Reduction>(reduction_->parameters(), group, options);
  next->copy_local_records(*reduction_);
  if (is_open()) {
    phase_ = Phase::idle;
    stays_armed_ = false;
    averaged_pass_.reset();
  }
  final_error_.clear();
  peer_state_ = peer_state_of(*group);
  reduction_ = std::move(next);
  group_ = std::move(group);
}

bool ReducerImpl::is_in_pass() {
  const std::lock_guard lock(mutex_);
  return is_open() && !was_left();
}

/// Does not open the pass: it may compute gradients of inputs only.
void ReducerImpl::on_output_grad() {
  const std::lock_guard lock(mutex_);
  check_not_left();
  if (end_.expired()) {
    register_on_end();
    claim_parameters();
  }
  stays_armed_ |= c10::GradMode::is_enabled();
  if (phase_ == Phase::idle) {
    phase_ = Phase::armed;
  }
  if (!std::exchange(has_output_, true)) {
    find_unreached();
  }
}

/// Another reducer may have claimed shared parameters since the forward.
void ReducerImpl::claim_parameters() {
  if (const auto* taken = hooks_->claim()) {
    end_.reset();
    hooks_->begin_pass({});
    TORCH_CHECK(false,
                "Expected parameter ",
                taken->name,
                " to be trained by one DistributedDataParallel (or Reducer) in "
                "a backward pass, but two that share it are in one; wrap one "
                "module that has all of their parameters and call its parts by "
                "call(), or make a backward pass for each");
  }
}

/// Uses the graph of the pass that has reached an output, because the graph of
/// a nested pass is only a part.
void ReducerImpl::find_unreached() {
  if (!reduction_->skips_unreached()) {
    return;
  }
  unreached_ = hooks_->unreached();
  if (is_open()) {
    reduction_->skip_unreached(unreached_);
  }
}

/// Registers `on_end` with the running graph task. That task has the output in
/// its graph, so the end of a nested pass (checkpointing) is not the end of it.
void ReducerImpl::register_on_end() {
  has_output_ = false;
  end_task_ = torch::autograd::get_current_graph_task_id();
  unreached_.clear();
  end_ = at_end_of_pass([self = shared_from_this()](bool is_nested) {
    return self->on_end(is_nested);
  });
  hooks_->begin_pass(end_);
}

/// Disarms, so that a later local pass is not reduced; another pass of the same
/// forward arms again by its watched output. With create_graph the phase stays
/// armed, because the pass that differentiates the gradients reaches parameters
/// without an output.
/// A nested pass that has reached parameters before an output is a part of the
/// enclosing pass.
bool ReducerImpl::on_end(bool is_nested) {
  const std::lock_guard lock(mutex_);
  if (is_nested && is_open() && !has_output_) {
    return false;
  }
  end_.reset();
  if (is_open()) {
    close();
  } else if (phase_ == Phase::armed && !stays_armed_) {
    phase_ = Phase::idle;
  }
  return true;
}

/// Whether an exception has left the open pass before its end.
bool ReducerImpl::was_left() const {
  return is_open() && end_.expired();
}

std::string ReducerImpl::left_error() const {
  return failure_error(group_->getRank(), kThrown);
}

/// Completes a pass that an exception has left: the other ranks wait for this
/// one in it. All ranks get the same error.
void ReducerImpl::end_left_pass() {
  reduction_->set_failure(kThrown);
  close();
  // The other ranks had completed the pass; the next one fails on all.
  TORCH_CHECK(false, left_error());
}

void ReducerImpl::check_not_left() const {
  TORCH_CHECK(!was_left(), left_error());
}

/// Throws if no pass may follow the earlier ones.
void ReducerImpl::check_sound() {
  if (final_error_.empty()) {
    final_error_ = reduction_->late_error();
  }
  TORCH_CHECK(final_error_.empty(), final_error_);
}

/// Aborts the pass, and leaves the job, if `work` throws.
template <typename Work>
auto ReducerImpl::or_abort(const Work& work) {
  try {
    return work();
  } catch (...) {
    final_error_ = left_error();
    reduction_->abandon();
    abort_and_announce(*group_, text_of(std::current_exception()));
    throw;
  }
}

void ReducerImpl::begin() {
  check_not_left();
  if (is_open()) {
    return;
  }
  if (end_.expired()) {
    register_on_end();
  }
  open();
}

/// Aborts if another thread's pass has not ended, because the other ranks wait
/// for this one.
std::shared_ptr<const AveragedPass> ReducerImpl::begin_averaged_pass(
    int graph_task) {
  auto* job = monitored_backend_of(*group_);
  return job == nullptr ? nullptr : or_abort([&] {
    return job->begin_pass({forward_thread_, graph_task});
  });
}

void ReducerImpl::open() {
  check_sound();
  auto averaged_pass = begin_averaged_pass(end_task_);
  if (c10::GradMode::is_enabled()) {
    TORCH_WARN_ONCE(
        "backward() with create_graph: gradients of gradients are not averaged "
        "over ranks");
  }
  unsynced_warning_.stop();
  const int ranks = mean_over_ ? mean_over_() : group_->getSize();
  TORCH_CHECK(ranks > 0,
              "Expected mean_over to return the number of ranks to average "
              "over, but got ",
              ranks);
  peer_state_->note_pass();
  reduction_->begin(ranks);
  if (reduction_->skips_unreached() && has_output_) {
    reduction_->skip_unreached(unreached_);
  }
  averaged_pass_ = std::move(averaged_pass);
  phase_ = Phase::open;
}

void ReducerImpl::on_local_grad(size_t index) {
  reduction_->record_local(index);
  if (unsynced_warning_.follows(index) &&
      unsynced_warning_.add(mark_of(reduction_->parameter(index))) &&
      group_->getRank() == 0) {
    warn_of_local_training();
  }
}

void ReducerImpl::on_grad_ready(size_t index) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::idle) {
    on_local_grad(index);
    return;
  }
  begin();
  const c10::NoGradGuard no_grad;
  or_abort([&] { reduction_->add(index); });
}

void ReducerImpl::close() {
  const auto guard = c10::make_scope_exit([this] { reset(); });
  const c10::NoGradGuard no_grad;
  auto outcome = or_abort([this] { return reduction_->end(on_pass_); });
  if (auto* progress = progress_file()) {
    progress->note_pass();
  }
  if (outcome.is_final) {
    final_error_ = outcome.error;
  }
  if (outcome.exception) {
    reduction_->set_failure(first_line(text_of(outcome.exception)));
    std::rethrow_exception(outcome.exception);
  }
  TORCH_CHECK(outcome.error.empty(), outcome.error);
  reduction_->assign_grads(std::move(outcome.unused));
}

void ReducerImpl::reset() {
  reduction_->reset();
  averaged_pass_.reset();
  is_attached_ = false;
  phase_ = stays_armed_ ? Phase::armed : Phase::idle;
}

}  // namespace ddp::detail
