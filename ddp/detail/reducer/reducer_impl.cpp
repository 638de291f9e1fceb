#include "ddp/detail/reducer/reducer_impl.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "ddp/detail/process_group/job_record.h"
#include "ddp/detail/reducer/verdict.h"
#include "ddp/detail/wait.h"
#include "ddp/exchanges/all_reduce.h"

namespace ddp::detail {
namespace {

constexpr const char* kThrown = "backward() threw it";

int64_t to_bytes(double mebibytes) {
  return static_cast<int64_t>(mebibytes * 1024 * 1024);
}

BucketCaps caps_of(const DistributedDataParallelOptions& options) {
  TORCH_CHECK(
      options.bucket_cap_mb() > 0 && options.first_bucket_cap_mb() > 0,
      "Expected bucket_cap_mb and first_bucket_cap_mb to be positive, but got ",
      options.bucket_cap_mb(),
      " and ",
      options.first_bucket_cap_mb());
  return {to_bytes(options.first_bucket_cap_mb()),
          to_bytes(options.bucket_cap_mb())};
}

BucketLayout layout_of(const Exchange& exchange, int ranks) {
  const int64_t multiple = exchange.multiple_of(ranks);
  TORCH_CHECK(multiple > 0,
              "Expected the exchange's multiple_of to be positive, but got ",
              multiple);
  return {multiple, Verdict::kNumel, exchange.sums_every_element()};
}

std::vector<NamedParameter> checked(std::vector<NamedParameter> parameters,
                                    const Exchange& exchange) {
  TORCH_CHECK(!parameters.empty(),
              "Expected at least one parameter that requires a gradient, but "
              "got none; without one the module needs no wrapper");
  const auto refusal = exchange.refuses_sparse();
  for (const auto& [name, tensor, sparse] : parameters) {
    TORCH_CHECK(tensor.requires_grad() && tensor.is_leaf(),
                "Expected parameter ",
                name,
                " to be a leaf that requires a gradient, but it is not");
    TORCH_CHECK(
        !sparse || refusal.empty(),
        refusal,
        ", but got the sparse parameter ",
        name,
        "; make its layer with sparse(false), or use AllReduce over Gloo");
  }
  return parameters;
}

std::vector<at::Tensor> tensors_of(const GradientBuckets& memory) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(memory.size());
  for (size_t i = 0; i < memory.size(); ++i) {
    tensors.push_back(memory.parameter(i).tensor);
  }
  return tensors;
}

std::string first_line_of(const std::exception_ptr& error) {
  std::string text = "an exception that is no std::exception";
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& caught) {
    text = caught.what_without_backtrace();
  } catch (const std::exception& caught) {
    text = caught.what();
  } catch (...) {
  }
  return text.substr(0, text.find('\n'));
}

bool in_backward_pass() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

}  // namespace

ReducerImpl::ReducerImpl(std::vector<NamedParameter> parameters,
                         c10::intrusive_ptr<c10d::Backend> group,
                         const DistributedDataParallelOptions& options)
    : group_(std::move(group)),
      exchange_(options.exchange() ? options.exchange()
                                   : std::make_shared<AllReduce>(group_)),
      memory_(checked(std::move(parameters), *exchange_),
              caps_of(options),
              layout_of(*exchange_, group_->getSize())),
      missing_(options.find_unused_parameters()
                   ? allow_unused(group_, memory_)
                   : refuse_missing(group_, memory_)),
      keeps_memory_(options.gradient_as_bucket_view()),
      next_pass_(missing_->expects_all() ? Phase::recording : Phase::reducing),
      updates_(tensors_of(memory_)),
      record_(record_of(*group_)) {
  hooks_ = std::make_unique<GradHooks>(
      tensors_of(memory_), [this](size_t index) { on_grad_ready(index); });
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
  phase_ = Phase::armed;
  stays_armed_ = false;
}

void ReducerImpl::disarm() {
  const std::lock_guard lock(mutex_);
  stays_armed_ = false;
  if (phase_ == Phase::armed) {
    phase_ = Phase::idle;
  }
}

void ReducerImpl::watch(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad() || output.is_leaf()) {
    return;
  }
  // Hooks of outputs that outlive the reducer find it gone.
  output.register_hook([weak = weak_from_this()](const at::Tensor& /*grad*/) {
    if (const auto self = weak.lock()) {
      self->on_output_grad();
    }
  });
}

void ReducerImpl::on_pass(std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  on_pass_ = std::move(action);
}

/// Whether parameters follow is not known yet: a pass may want the inputs'
/// gradients alone.
void ReducerImpl::on_output_grad() {
  const std::lock_guard lock(mutex_);
  check_not_left();
  stays_armed_ |= c10::GradMode::is_enabled();
  if (phase_ == Phase::idle) {
    phase_ = Phase::armed;
  }
  watch_end();
}

/// Of the graph task that runs: the outermost one where this comes from an
/// output, so that nested passes (checkpointing) do not end this one.
void ReducerImpl::watch_end() {
  if (!end_.expired()) {
    return;
  }
  // Goes with the task, also where an exception ends that.
  const auto token = std::make_shared<char>();
  end_ = token;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this(), token] { self->on_end(); });
}

/// What was armed must not stay so for a pass of this rank alone: another one
/// of the forward passes a watched output again. Unless this one's gradients
/// will be differentiated: that brings the parameters' without.
void ReducerImpl::on_end() {
  const std::lock_guard lock(mutex_);
  end_.reset();
  if (is_open()) {
    close();
  } else if (phase_ == Phase::armed && !stays_armed_) {
    phase_ = Phase::idle;
  }
}

/// The graph task of the pass has gone, and it has not ended.
bool ReducerImpl::was_left() const {
  return is_open() && end_.expired();
}

std::string ReducerImpl::left_error() const {
  std::vector<PassReport> reports(group_->getSize());
  reports[group_->getRank()].failure = kThrown;
  return pass_error(reports);
}

/// The other ranks wait for this one in it; their error is that of all.
void ReducerImpl::end_left_pass() {
  account_.failure = kThrown;
  close();
  TORCH_CHECK(false, left_error());  // they had ended it; the next one tells
}

void ReducerImpl::check_not_left() const {
  TORCH_CHECK(!was_left(), left_error());
}

/// Why no pass may follow those before.
void ReducerImpl::check_sound() {
  if (broken_.empty()) {
    broken_ = missing_->late_error();
  }
  TORCH_CHECK(broken_.empty(), broken_);
}

void ReducerImpl::begin() {
  check_not_left();
  if (!is_open()) {
    watch_end();
    open();
  }
}

void ReducerImpl::open() {
  check_sound();
  if (c10::GradMode::is_enabled()) {
    TORCH_WARN_ONCE(
        "backward() with create_graph: gradients of gradients are not averaged "
        "over ranks");
  }
  memory_.begin(keeps_memory_);
  memory_.set_scale(exchange_->scale(group_->getSize()));
  ++account_.number;
  record_->note_pass();
  account_.without_step = updates_.begin_pass();
  phase_ = next_pass_;
  add_frozen();
}

/// What was frozen in the pass before is not waited for, so that its buckets
/// start as early as the others.
void ReducerImpl::add_frozen() {
  auto& frozen = account_.frozen;
  frozen.erase(
      std::remove_if(frozen.begin(),
                     frozen.end(),
                     [this](size_t index) {
                       return memory_.parameter(index).tensor.requires_grad();
                     }),
      frozen.end());
  for (const size_t index : frozen) {
    memory_.add_absent(index);
  }
}

void ReducerImpl::on_grad_ready(size_t index) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::idle) {
    memory_.note_accumulated(index);
    return;
  }
  begin();
  auto breaks = c10::make_scope_exit([this] { broken_ = left_error(); });
  const c10::NoGradGuard no_grad;
  const bool is_full = memory_.add(index);
  if (phase_ == Phase::recording) {
    order_.push_back(index);
  } else if (is_full) {
    start_full_buckets();
  }
  breaks.release();
}

void ReducerImpl::close() {
  const auto guard = c10::make_scope_exit([this] { reset(); });
  const c10::NoGradGuard no_grad;
  auto breaks = c10::make_scope_exit([this] { broken_ = left_error(); });
  add_missing();
  if (phase_ == Phase::recording) {
    agree_on_plan();
  }
  start_full_buckets();
  Settlement settlement;
  const auto failure = end_with_others(settlement);
  updates_.end_pass();
  breaks.release();
  if (settlement.is_final) {
    broken_ = settlement.error;
  }
  if (failure) {
    account_.failure = first_line_of(failure);
    std::rethrow_exception(failure);
  }
  TORCH_CHECK(settlement.error.empty(), settlement.error);
  hand_out(std::move(settlement.unused));
}

/// Fills every bucket, so that no other rank waits for this one.
void ReducerImpl::add_missing() {
  if (next_ == memory_.bucket_count()) {
    return;
  }
  auto& frozen = account_.frozen;
  for (const size_t index : memory_.expected()) {
    const bool trains = memory_.parameter(index).tensor.requires_grad();
    (trains ? account_.missing : frozen).push_back(index);
    memory_.add_absent(index);
  }
  std::sort(frozen.begin(), frozen.end());
  if (phase_ == Phase::recording) {
    for (const auto* absent : {&account_.missing, &frozen}) {
      order_.insert(order_.end(), absent->begin(), absent->end());
    }
  }
}

/// Rank 0 plans, by the order in which it met the gradients. All of them are in
/// buckets by now and move.
void ReducerImpl::agree_on_plan() {
  auto numbers = at::zeros({static_cast<int64_t>(memory_.size())}, at::kLong);
  if (group_->getRank() == 0) {
    const auto plan = to_numbers(memory_.plan_for(order_));
    std::copy(plan.begin(), plan.end(), numbers.mutable_data_ptr<int64_t>());
  }
  std::vector<at::Tensor> shared{
      numbers.to(memory_.parameter(0).tensor.device())};
  wait(group_->broadcast(shared), *group_, "broadcast of the bucket plan");
  numbers = shared[0].cpu();
  memory_.move_to(plan_of({numbers.const_data_ptr<int64_t>(),
                           static_cast<size_t>(numbers.numel())}));
  phase_ = next_pass_ = Phase::reducing;
}

/// In plan order only, which makes the ranks' collectives match.
void ReducerImpl::start_full_buckets() {
  while (next_ < memory_.bucket_count() && memory_.is_full(next_)) {
    if (next_ + 1 == memory_.bucket_count()) {
      missing_->note(account_);
    }
    exchange_->start(memory_.bucket(next_));
    ++next_;
    if (next_ == memory_.bucket_count()) {
      missing_->start();
    }
  }
}

/// Goes on after a failure, which may be this rank's alone: the others wait for
/// it in what follows. What fails twice fails because they cannot be reached.
std::exception_ptr ReducerImpl::end_with_others(Settlement& settlement) {
  std::exception_ptr failure;
  const auto attempt = [&failure](const auto& action) {
    try {
      action();
    } catch (...) {
      if (failure) {
        std::rethrow_exception(failure);
      }
      failure = std::current_exception();
    }
  };
  for (size_t i = 0; i < memory_.bucket_count(); ++i) {
    attempt([&] { exchange_->finish(memory_.bucket(i)); });
  }
  if (on_pass_) {
    attempt(on_pass_);
  }
  attempt([&] { settlement = missing_->settle(account_); });
  return failure;
}

/// But for what is not used, and what is frozen.
void ReducerImpl::hand_out(std::vector<size_t> kept) {
  kept.insert(kept.end(), account_.frozen.begin(), account_.frozen.end());
  std::sort(kept.begin(), kept.end());
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  memory_.hand_out_all_but(kept);
}

void ReducerImpl::reset() {
  account_.missing.clear();
  memory_.reset();
  order_.clear();
  next_ = 0;
  phase_ = stays_armed_ ? Phase::armed : Phase::idle;
}

}  // namespace ddp::detail
