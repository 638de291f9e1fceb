#include "ddp/reduce/detail/reduction.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/zeros.h>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/wait.h"
#include "ddp/reduce/detail/graph_changes.h"
#include "ddp/reduce/detail/reduction_options.h"

namespace ddp::detail {

Reduction::Reduction(std::vector<NamedParameter> parameters,
                     c10::intrusive_ptr<c10d::Backend> group,
                     const DistributedDataParallelOptions& options)
    : group_(std::move(group)),
      exchange_(options.exchange() ? options.exchange()
                                   : std::make_shared<AllReduce>(group_)),
      memory_(checked_layouts(std::move(parameters), *exchange_),
              bucket_caps_of(options),
              bucket_layout_of(*exchange_, group_->getSize())),
      agreement_(group_, memory_, unused_mode_of(options)),
      keeps_memory_(options.gradient_as_bucket_view()),
      is_recording_(!options.find_unused_parameters()),
      graph_(options.static_graph()
                 ? std::make_unique<GraphRecord>(memory_.size())
                 : nullptr),
      unreached_(options.find_unused_parameters()
                     ? std::make_unique<Unreached>(memory_.size())
                     : nullptr),
      steps_(compared()) {
  if (auto* job = monitored_backend_of(*group_)) {
    status_.reducer = job->number_reducer();
  }
}

std::vector<NamedParameter> Reduction::parameters() const {
  std::vector<NamedParameter> parameters;
  parameters.reserve(memory_.size());
  for (size_t i = 0; i < memory_.size(); ++i) {
    parameters.push_back(memory_.parameter(i));
  }
  return parameters;
}

void Reduction::note_local_of(const Reduction& other) {
  for (size_t i = 0; i < memory_.size(); ++i) {
    if (other.memory_.has_accumulated(i)) {
      note_local(i);
    }
  }
}

void Reduction::begin(int ranks) {
  open(ranks);
  status_.without_step = steps_.count_passes_without_step();
  add_frozen();
  if (graph_ && graph_->is_known()) {
    add_unused();
  }
}

void Reduction::begin_shadow(int ranks) {
  for (auto& tensor : tensors()) {
    tensor.mutable_grad().reset();
  }
  open(ranks);
  status_.is_shadow = true;
  add_frozen();
}

void Reduction::open(int ranks) {
  memory_.begin(keeps_memory_);
  memory_.set_scale(exchange_->scale(ranks));
  ++status_.number;
}

void Reduction::add(size_t index) {
  if (graph_ && !graph_->add(index)) {
    return;
  }
  take(index);
}

void Reduction::look_ahead(const std::vector<size_t>& unreached) {
  unreached_->begin(unreached, memory_.expected(), memory_.plan());
}

/// Its bucket may have started without it.
bool Reduction::comes_too_late(size_t index) {
  unreached_->add(index);
  if (!memory_.is_absent(index) || !parameter(index).requires_grad()) {
    return false;
  }
  status_.add_late(memory_.parameter(index).name);
  return true;
}

void Reduction::take(size_t index) {
  if (unreached_ && comes_too_late(index)) {
    return;
  }
  const bool is_full =
      memory_.add(index) || (unreached_ && unreached_->is_known());
  if (is_recording_) {
    order_.push_back(index);
  } else if (is_full) {
    // Whether a graph has changed is known at the end, and rides on the last.
    start_full_buckets(memory_.bucket_count() - (graph_ ? 1 : 0));
  }
}

PassOutcome Reduction::end(const std::function<void()>& action) {
  if (graph_ && !status_.is_shadow) {
    compare_graph();
  }
  add_missing();
  if (is_recording_) {
    agree_on_plan();
  }
  start_full_buckets(memory_.bucket_count());
  return end_with_others(action);
}

/// What was frozen in the pass before is not waited for, so that its buckets
/// start as early as the others.
void Reduction::add_frozen() {
  auto& frozen = status_.frozen;
  const auto trains = [this](size_t index) {
    return parameter(index).requires_grad();
  };
  frozen.erase(std::remove_if(frozen.begin(), frozen.end(), trains),
               frozen.end());
  for (const size_t index : frozen) {
    memory_.fill_missing(index);
  }
}

/// What had no gradient in the first pass; since then it may have been frozen.
void Reduction::add_unused() {
  for (const size_t index : graph_->unused()) {
    if (memory_.expects(index)) {
      if (!parameter(index).requires_grad()) {
        status_.frozen.push_back(index);
      }
      memory_.fill_missing(index);
    }
  }
}

/// A rank that was without inputs in the ranks' first pass may use what all
/// others have left out; there is no place for that.
void Reduction::learn_graph() {
  for (const size_t index : graph_->learn()) {
    if (memory_.has_bucket(index)) {
      take(index);
    } else {
      status_.add_changed(memory_.parameter(index).name +
                          " (not at all on the ranks that began)");
    }
  }
}

void Reduction::compare_graph() {
  if (!graph_->is_known()) {
    learn_graph();
    return;
  }
  status_.changed = changes_of(*graph_, memory_);
}

void Reduction::leave_out(size_t index) {
  const bool trains = memory_.parameter(index).tensor.requires_grad();
  (trains ? status_.missing : status_.frozen).push_back(index);
  memory_.fill_missing(index);
}

/// Whether a bucket waited for nothing else.
bool Reduction::fill_with_unreached(size_t bucket) {
  if (!unreached_ || memory_.pending(bucket) != unreached_->left(bucket)) {
    return false;
  }
  for (const size_t index : memory_.plan()[bucket]) {
    if (memory_.expects(index)) {
      leave_out(index);
    }
  }
  return true;
}

/// Fills every bucket, so that no other rank waits for this one.
void Reduction::add_missing() {
  if (next_ == memory_.bucket_count() && !unreached_) {
    return;
  }
  for (const size_t index : memory_.expected()) {
    leave_out(index);
  }
  std::sort(status_.missing.begin(), status_.missing.end());
  std::sort(status_.frozen.begin(), status_.frozen.end());
  if (is_recording_) {
    for (const auto* absent : {&status_.missing, &status_.frozen}) {
      order_.insert(order_.end(), absent->begin(), absent->end());
    }
  }
}

/// Rank 0 plans, by the order in which it met the gradients. All of them are in
/// buckets by now and move; what none will ever bring is in none any more.
void Reduction::agree_on_plan() {
  const auto never = agreement_.learn_unused(status_);
  auto numbers = at::zeros(
      {static_cast<int64_t>(memory_.size() - never.size())}, at::kLong);
  if (group_->getRank() == 0) {
    order_.erase(std::remove_if(order_.begin(),
                                order_.end(),
                                [&never](size_t index) {
                                  return std::binary_search(
                                      never.begin(), never.end(), index);
                                }),
                 order_.end());
    const auto plan = to_numbers(memory_.plan_for(order_));
    std::copy(plan.begin(), plan.end(), numbers.mutable_data_ptr<int64_t>());
  }
  std::vector<at::Tensor> shared{
      numbers.to(memory_.parameter(0).tensor.device())};
  wait(group_->broadcast(shared), *group_, "broadcast of the bucket plan");
  numbers = shared[0].cpu();
  // An abort ends what the host has waited for, and leaves garbage.
  check_whole(*group_, "broadcast of the bucket plan");
  memory_.move_to(plan_of(
      {numbers.const_data_ptr<int64_t>(), static_cast<size_t>(numbers.numel())},
      memory_.size()));
  is_recording_ = false;
}

/// In plan order only, which makes the ranks' collectives match.
void Reduction::start_full_buckets(size_t end) {
  while (next_ < end &&
         (memory_.is_full(next_) || fill_with_unreached(next_))) {
    if (next_ + 1 == memory_.bucket_count()) {
      agreement_.write_status(status_);
    }
    exchange_->start(memory_.bucket(next_));
    ++next_;
    if (next_ == memory_.bucket_count()) {
      agreement_.start();
    }
  }
}

/// Goes on after a failure, which may be this rank's alone: the others wait for
/// it in what follows. What fails twice fails because they cannot be reached.
PassOutcome Reduction::end_with_others(const std::function<void()>& action) {
  std::exception_ptr exception;
  const auto attempt = [&exception](const auto& step) {
    try {
      step();
    } catch (...) {
      if (exception) {
        std::rethrow_exception(exception);
      }
      exception = std::current_exception();
    }
  };
  for (size_t i = 0; i < memory_.bucket_count(); ++i) {
    attempt([&] { exchange_->finish(memory_.bucket(i)); });
  }
  if (action) {
    attempt(action);
  }
  PassOutcome outcome;
  attempt([&] { outcome = agreement_.finish(status_); });
  outcome.exception = exception;
  return outcome;
}

/// But for what is not used, and what is frozen.
void Reduction::hand_out(std::vector<size_t> kept) {
  kept.insert(kept.end(), status_.frozen.begin(), status_.frozen.end());
  std::sort(kept.begin(), kept.end());
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  memory_.hand_out_all_but(kept);
}

void Reduction::abandon() noexcept {
  exchange_->abandon();
  agreement_.abandon();
}

void Reduction::reset() {
  status_.reset();
  memory_.reset();
  order_.clear();
  next_ = 0;
  if (graph_) {
    graph_->reset();
  }
  if (unreached_) {
    unreached_->reset();
  }
}

}  // namespace ddp::detail
