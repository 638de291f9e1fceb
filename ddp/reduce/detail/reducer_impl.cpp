#include "ddp/reduce/detail/reducer_impl.h"

#include <utility>

#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/graph_task.h>

#include "ddp/base/job_files/progress_file.h"
#include "ddp/job/error_text.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/reduce/detail/end_of_pass.h"
#include "ddp/reduce/detail/reduction_options.h"

namespace ddp::detail {
namespace {

constexpr const char* kThrown = "backward() threw it";

bool in_backward_pass() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

}  // namespace

ReducerImpl::ReducerImpl(std::vector<NamedParameter> parameters,
                         c10::intrusive_ptr<c10d::Backend> group,
                         const DistributedDataParallelOptions& options)
    : group_(std::move(group)),
      options_(options),
      reduction_(std::make_unique<Reduction>(
          checked_leaves(std::move(parameters)), group_, options)),
      record_(peer_state_of(*group_)) {
  options_.exchange(nullptr);
  hooks_ = std::make_unique<GradHooks>(
      reduction_->parameters(), [this](size_t index) { on_grad_ready(index); });
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
  hooks_->hang();
  forward_thread_.reset();
  if (!in_backward_pass()) {
    forward_thread_ = std::this_thread::get_id();
  }
  is_hung_ = false;  // not for what the forward does
  phase_ = Phase::armed;
  stays_armed_ = false;
}

void ReducerImpl::disarm() {
  const std::lock_guard lock(mutex_);
  if (!is_open()) {
    hooks_->hang();
  }
  stays_armed_ = false;
  if (phase_ == Phase::armed) {
    phase_ = Phase::idle;
  }
}

void ReducerImpl::expect_local_passes() {
  const std::lock_guard lock(mutex_);
  local_watch_.stop();
}

void ReducerImpl::watch(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad() || output.is_leaf()) {
    return;
  }
  hang_hooks();
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

/// By the forward's end every parameter that it used has the node that the
/// graph ends in.
void ReducerImpl::hang_hooks() {
  const std::lock_guard lock(mutex_);
  if (!is_open() && !std::exchange(is_hung_, true)) {
    hooks_->hang();
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
  begin_over_group(-1);
  record_->note_pass();
  reduction_->begin_shadow(ranks);
  close();
}

void ReducerImpl::forget_steps() {
  const std::lock_guard lock(mutex_);
  reduction_->forget_steps();
}

/// A pass that an exception has left is of the group before.
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
  next->note_local_of(*reduction_);
  if (is_open()) {
    phase_ = Phase::idle;
    stays_armed_ = false;
    averaged_pass_.reset();
  }
  broken_.clear();
  record_ = peer_state_of(*group);
  reduction_ = std::move(next);
  group_ = std::move(group);
}

bool ReducerImpl::is_in_pass() {
  const std::lock_guard lock(mutex_);
  return is_open() && !was_left();
}

/// Whether parameters follow is not known yet: a pass may want the inputs'
/// gradients alone.
void ReducerImpl::on_output_grad() {
  const std::lock_guard lock(mutex_);
  check_not_left();
  if (end_.expired()) {
    watch_end();
    own_all();
  }
  stays_armed_ |= c10::GradMode::is_enabled();
  if (phase_ == Phase::idle) {
    phase_ = Phase::armed;
  }
  if (!std::exchange(has_output_, true)) {
    look_ahead();
  }
}

/// Another reducer may have taken shared parameters after the forward of this
/// pass.
void ReducerImpl::own_all() {
  if (const auto* taken = hooks_->take()) {
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

/// By the graph of the pass that has met an output: one inside it knows less.
void ReducerImpl::look_ahead() {
  if (!reduction_->looks_ahead()) {
    return;
  }
  unreached_ = hooks_->unreached();
  if (is_open()) {
    reduction_->look_ahead(unreached_);
  }
}

/// Of the graph task that runs: the one whose graph has the output, so that
/// passes nested in it (checkpointing) do not end this one.
void ReducerImpl::watch_end() {
  if (!end_.expired()) {
    return;
  }
  has_output_ = false;
  end_task_ = torch::autograd::get_current_graph_task_id();
  unreached_.clear();
  end_ = at_end_of_pass([self = shared_from_this()](bool is_nested) {
    return self->on_end(is_nested);
  });
  hooks_->begin_pass(end_);
}

/// What was armed must not stay so for a pass of this rank alone: another one
/// of the forward passes a watched output again. Unless this one's gradients
/// will be differentiated: that brings the parameters' without.
/// A nested pass that has met parameters before an output is a part of the one
/// around it.
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

/// The graph task of the pass has gone, and it has not ended.
bool ReducerImpl::was_left() const {
  return is_open() && end_.expired();
}

std::string ReducerImpl::left_error() const {
  return failure_error(group_->getRank(), kThrown);
}

/// The other ranks wait for this one in it; their error is that of all.
void ReducerImpl::end_left_pass() {
  reduction_->note_failure(kThrown);
  close();
  TORCH_CHECK(false, left_error());  // they had ended it; the next one tells
}

void ReducerImpl::check_not_left() const {
  TORCH_CHECK(!was_left(), left_error());
}

/// Why no pass may follow those before.
void ReducerImpl::check_sound() {
  if (broken_.empty()) {
    broken_ = reduction_->late_error();
  }
  TORCH_CHECK(broken_.empty(), broken_);
}

/// After an exception of `work` the rest of the pass is not made.
template <typename Work>
auto ReducerImpl::or_give_up(const Work& work) {
  try {
    return work();
  } catch (...) {
    broken_ = left_error();
    reduction_->abandon();
    abort_and_announce(*group_, text_of(std::current_exception()));
    throw;
  }
}

void ReducerImpl::begin() {
  check_not_left();
  if (!is_open()) {
    watch_end();
    open();
  }
}

/// The other ranks wait for the pass that another thread keeps from this one.
void ReducerImpl::begin_over_group(int graph_task) {
  if (auto* job = monitored_backend_of(*group_)) {
    averaged_pass_ = or_give_up([&] {
      return job->begin_pass({forward_thread_, graph_task});
    });
  }
}

void ReducerImpl::open() {
  check_sound();
  begin_over_group(end_task_);
  if (c10::GradMode::is_enabled()) {
    TORCH_WARN_ONCE(
        "backward() with create_graph: gradients of gradients are not averaged "
        "over ranks");
  }
  local_watch_.stop();
  const int ranks = mean_over_ ? mean_over_() : group_->getSize();
  record_->note_pass();
  reduction_->begin(ranks);
  if (reduction_->looks_ahead() && has_output_) {
    reduction_->look_ahead(unreached_);
  }
  phase_ = Phase::open;
}

void ReducerImpl::note_local(size_t index) {
  reduction_->note_local(index);
  if (local_watch_.follows(index) &&
      local_watch_.add(mark_of(reduction_->parameter(index))) &&
      group_->getRank() == 0) {
    warn_of_local_training();
  }
}

void ReducerImpl::on_grad_ready(size_t index) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::idle) {
    note_local(index);
    return;
  }
  begin();
  const c10::NoGradGuard no_grad;
  or_give_up([&] { reduction_->add(index); });
}

void ReducerImpl::close() {
  const auto guard = c10::make_scope_exit([this] { reset(); });
  const c10::NoGradGuard no_grad;
  auto outcome = or_give_up([this] { return reduction_->end(on_pass_); });
  if (auto* progress = progress_file()) {
    progress->note_pass();
  }
  if (outcome.is_final) {
    broken_ = outcome.error;
  }
  if (outcome.exception) {
    reduction_->note_failure(first_line(text_of(outcome.exception)));
    std::rethrow_exception(outcome.exception);
  }
  TORCH_CHECK(outcome.error.empty(), outcome.error);
  reduction_->hand_out(std::move(outcome.unused));
}

void ReducerImpl::reset() {
  reduction_->reset();
  averaged_pass_.reset();
  is_hung_ = false;
  phase_ = stays_armed_ ? Phase::armed : Phase::idle;
}

}  // namespace ddp::detail
