#include "dp/servers/detail/coordinator.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "ddp/base/job_files/progress_file.h"
#include "ddp/job/error_text.h"
#include "dp/servers/detail/message.h"

namespace dp::detail {

using std::chrono::milliseconds;

Coordinator::Coordinator(std::unique_ptr<UpdatePolicy> policy,
                         const std::vector<at::Tensor>& parameters,
                         int workers,
                         int gradients_held)
    : parameters_(parameters),
      gradients_held_(static_cast<size_t>(gradients_held)),
      policy_(std::move(policy)),
      places_(static_cast<size_t>(workers)) {}

void Coordinator::serve(Shard& shard,
                        int64_t updates,
                        AfterUpdate after_update) {
  const std::lock_guard lock(mutex_);
  shard_ = &shard;
  report_.updates = updates;
  after_update_ = std::move(after_update);
}

void Coordinator::run() {
  Lock lock(mutex_);
  for (;;) {
    {
      const ddp::detail::RankWaitScope waits("gradients of the workers");
      changed_.wait(lock, [this] {
        return has_work_ || is_closed_ || !failure_.empty();
      });
    }
    if (!has_work_ || !failure_.empty()) {
      return;
    }
    lock.unlock();
    make_updates();
    if (auto* progress = ddp::detail::progress_file()) {
      progress->note_forward();
    }
    lock.lock();
  }
}

void Coordinator::make_updates() {
  Lock lock(mutex_);
  try {
    for (bool goes_on = true; goes_on && failure_.empty();) {
      has_work_ = false;
      const auto worker = policy_->next_term();
      if (worker) {
        add(lock, *worker);
      }
      const auto step = policy_->next_step();
      if (step) {
        make(lock, *step);
      }
      goes_on = worker || step;
    }
    end(policy_->problem());
  } catch (const std::exception& error) {
    end("an update failed: " + ddp::detail::text_of(error));
  }
  changed_.notify_all();
}

void Coordinator::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

std::optional<at::Tensor> Coordinator::memory_for(int worker,
                                                  milliseconds patience) {
  Lock lock(mutex_);
  if (!wait(lock, patience, [&] { return may_hold(worker); })) {
    return std::nullopt;
  }
  auto& gradients = place(worker).gradients;
  if (spare_.empty()) {
    gradients.emplace(parameters_);
  } else {
    gradients = std::move(spare_.back());
    spare_.pop_back();
  }
  return gradients->flat();
}

void Coordinator::push(int worker, const Presence& presence, double loss) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) {
    return;
  }
  auto& own = place(worker);
  own.has_pushed = true;
  own.presence = presence;
  own.loss = loss;
  report_.moved.received += own.gradients->bytes();
  policy_->push(worker);
  note_change();
}

void Coordinator::drop(int worker) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) {
    policy_->drop(worker);
    note_change();
  }
}

void Coordinator::ask(int worker) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) {
    policy_->ask(worker);
    note_change();
  }
}

std::optional<int64_t> Coordinator::take(int worker, milliseconds patience) {
  Lock lock(mutex_);
  if (!wait(lock, patience, [&] {
        return !is_updating_ && policy_->may_take(worker);
      })) {
    return std::nullopt;
  }
  policy_->take(worker);
  report_.moved.sent += shard_->bytes();
  changed_.notify_all();  // the next worker in the queue may proceed
  return report_.updates;
}

std::optional<at::Tensor> Coordinator::piece(int64_t begin,
                                             milliseconds patience) {
  const auto& flat = shard_->flat();
  const auto piece =
      flat.narrow(0, begin, std::min(kPieceBytes, flat.numel() - begin));
  Lock lock(mutex_);
  // Synchronous updates wait for this worker's push, and no update follows
  // after all workers have left.
  if (policy_->blocks_updates_while_computing() || policy_->is_over()) {
    return piece;
  }
  if (!wait(lock, patience, [&] { return !is_updating_; })) {
    return std::nullopt;
  }
  return piece.clone();
}

void Coordinator::leave(int worker) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) {
    policy_->leave(worker);
    note_change();
  }
}

std::optional<int64_t> Coordinator::acquire_final(milliseconds patience) {
  Lock lock(mutex_);
  if (!wait(lock, patience, [&] {
        return policy_->is_over() && !has_work_ && !is_updating_;
      })) {
    return std::nullopt;
  }
  report_.moved.sent += shard_->bytes();
  return report_.updates;
}

void Coordinator::lose(int worker, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  take_back(worker);
  if (failure_.empty()) {
    policy_->lose(worker, reason);
    note_change();
  }
}

void Coordinator::take_back(int worker) {
  auto& own = place(worker);
  if (own.gradients && !own.has_pushed) {
    spare_.push_back(*std::exchange(own.gradients, std::nullopt));
    changed_.notify_all();
  }
}

void Coordinator::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  end(reason.empty() ? "a rank failed and did not say why" : reason);
}

std::string Coordinator::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

ServerReport Coordinator::report() const {
  const std::lock_guard lock(mutex_);
  ServerReport report = report_;
  report.lost = policy_->lost();
  return report;
}

template <class Ready>
bool Coordinator::wait(Lock& lock, milliseconds patience, const Ready& ready) {
  const bool is_done = changed_.wait_for(
      lock, patience, [&] { return !failure_.empty() || ready(); });
  if (!failure_.empty()) {
    throw JobEnded(failure_);
  }
  return is_done;
}

template <class Work>
void Coordinator::make_unlocked(Lock& lock, const Work& work) {
  is_updating_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    work();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  is_updating_ = false;
  changed_.notify_all();
  if (error) {
    std::rethrow_exception(error);
  }
}

void Coordinator::note_change() {
  has_work_ = true;
  changed_.notify_all();
}

bool Coordinator::may_hold(int worker) const {
  size_t held = 0, ahead = 0;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].gradients) {
      ++held;
      ahead += policy_->is_first(static_cast<int>(i)) ? 0 : 1;
    }
  }
  // Workers ahead of their turn may not use the last memory; it is reserved for
  // the worker whose turn is next.
  return held < gradients_held_ &&
         (policy_->is_first(worker) || ahead + 1 < gradients_held_);
}

void Coordinator::add(Lock& lock, int worker) {
  auto& own = place(worker);
  const FlatTensors gradients = *own.gradients;
  loss_ += own.loss;
  const bool is_first = sum_.is_empty();
  make_unlocked(
      lock, [&] { sum_.add(gradients, own.presence, 1.0 / policy_->terms()); });
  own.gradients.reset();
  own.has_pushed = false;
  if (!is_first) {
    spare_.push_back(gradients);
  }
}

void Coordinator::make(Lock& lock, const Step& step) {
  const double loss = std::exchange(loss_, 0);
  const Update update{report_.updates,
                      step.workers.front(),
                      step.staleness,
                      loss / static_cast<double>(step.workers.size())};
  make_unlocked(lock, [&] {
    shard_->step(sum_.gradients(), update);
    if (after_update_) {
      after_update_(update.number + 1);
    }
  });
  spare_.push_back(sum_.clear());
  ++report_.updates;
  const auto staleness = static_cast<size_t>(step.staleness);
  if (report_.staleness.size() <= staleness) {
    report_.staleness.resize(staleness + 1);
  }
  ++report_.staleness[staleness];
}

void Coordinator::end(const std::string& reason) {
  if (failure_.empty() && !reason.empty()) {
    failure_ = reason;
    changed_.notify_all();
  }
}

}  // namespace dp::detail
