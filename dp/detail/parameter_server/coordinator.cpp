#include "dp/detail/parameter_server/coordinator.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "ddp/detail/explain.h"
#include "ddp/detail/job_files/error_text.h"

namespace dp::detail {
namespace {

using Lock = std::unique_lock<std::mutex>;
using std::chrono::milliseconds;

/// Between two looks for a worker that may be back.
constexpr milliseconds kRest{100};

}  // namespace

Coordinator::Coordinator(std::unique_ptr<UpdatePolicy> policy,
                         const std::vector<at::Tensor>& parameters,
                         int workers,
                         int gradients_held)
    : parameters_(parameters),
      gradients_held_(static_cast<size_t>(gradients_held)),
      policy_(std::move(policy)),
      places_(static_cast<size_t>(workers)),
      copies_(static_cast<size_t>(workers)) {}

void Coordinator::serve(Shard& shard,
                        int64_t updates,
                        AfterUpdate after_update) {
  const std::lock_guard lock(mutex_);
  shard_ = &shard;
  report_.updates = updates;
  after_update_ = std::move(after_update);
}

std::optional<at::Tensor> Coordinator::lend(int worker,
                                            const Contents& contents,
                                            milliseconds patience) {
  Lock lock(mutex_);
  auto& gradients = place(worker).gradients;
  if (!wait(lock, patience, [&] { return gradients || may_lend(worker); })) {
    return std::nullopt;
  }
  if (!gradients) {
    gradients.emplace(memory_for_gradients());
  }
  return gradients->lend(parameters_, contents);
}

at::Tensor Coordinator::memory_for_gradients() {
  at::Tensor memory;
  if (!spare_.empty()) {
    memory = std::move(spare_.back());
    spare_.pop_back();
  }
  if (room_ > (memory.defined() ? memory.numel() : 0)) {
    memory = at::empty({room_}, at::kByte);
  }
  return memory;
}

void Coordinator::push(int worker, double loss) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) {
    return;
  }
  place(worker).has_pushed = true;
  place(worker).loss = loss;
  report_.moved.received += place(worker).gradients->bytes();
  policy_->push(worker);
  advance();
}

void Coordinator::drop(int worker) {
  const std::lock_guard lock(mutex_);
  take_back(worker);
  if (failure_.empty()) {
    policy_->suspend(worker);
    advance();
  }
}

void Coordinator::ask(int worker) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) {
    policy_->ask(worker);
    advance();
  }
}

std::optional<Coordinator::Parameters> Coordinator::take(
    int worker, const Rows& rows, milliseconds patience) {
  Lock lock(mutex_);
  if (!wait(lock, patience, [&] {
        return policy_->may_take(worker) && may_copy(rows);
      })) {
    return std::nullopt;
  }
  policy_->take(worker);
  changed_.notify_all();  // the next in the queue may go
  if (policy_->keeps_still() && !any_rows(rows)) {
    report_.moved.sent += shard_->bytes();
    return Parameters{shard_->flat(), report_.updates};
  }
  return Parameters{copy_of(worker, rows), report_.updates};
}

void Coordinator::given(int worker) {
  const std::lock_guard lock(mutex_);
  copies_.arrived(static_cast<size_t>(worker));
  changed_.notify_all();
}

void Coordinator::leave(int worker) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) {
    policy_->leave(worker);
    advance();
  }
}

std::optional<Coordinator::Parameters> Coordinator::take_last(
    milliseconds patience) {
  Lock lock(mutex_);
  if (!wait(lock, patience, [&] { return policy_->is_over(); })) {
    return std::nullopt;
  }
  report_.moved.sent += shard_->bytes();
  return Parameters{shard_->flat(), report_.updates};
}

bool Coordinator::suspend(int worker) {
  const std::lock_guard lock(mutex_);
  take_back(worker);
  if (!failure_.empty() || policy_->has_left(worker)) {
    return false;
  }
  policy_->suspend(worker);
  advance();
  return failure_.empty();
}

void Coordinator::welcome(int worker) {
  const std::lock_guard lock(mutex_);
  report_.returned.push_back(worker);
}

bool Coordinator::rest() {
  Lock lock(mutex_);
  return changed_.wait_for(lock, kRest, [&] { return !failure_.empty(); });
}

void Coordinator::lose(int worker, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  take_back(worker);
  if (failure_.empty()) {
    policy_->lose(worker, reason);
    advance();
  }
}

void Coordinator::take_back(int worker) {
  copies_.arrived(static_cast<size_t>(worker));
  if (!place(worker).has_pushed) {
    place(worker).gradients.reset();
  }
  changed_.notify_all();
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

bool Coordinator::may_lend(int worker) const {
  size_t lent = 0, ahead = 0;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].gradients) {
      ++lent;
      ahead += policy_->is_first(static_cast<int>(i)) ? 0 : 1;
    }
  }
  // Of the memory for those ahead of their turn one is kept free for the first.
  return lent < gradients_held_ &&
         (policy_->is_first(worker) || ahead + 1 < gradients_held_);
}

bool Coordinator::may_copy(const Rows& rows) const {
  return any_rows(rows)
             ? copies_.has_room()
             : policy_->keeps_still() || copies_.has_room_for_whole();
}

at::Tensor Coordinator::copy_of(int worker, const Rows& rows) {
  if (any_rows(rows)) {
    Packet packet(parameters_, contents_of(rows));
    copy_parts(shard_->parameters(), rows, packet);
    report_.moved.sent += packet.bytes();
    copies_.send(static_cast<size_t>(worker), packet.flat());
    return packet.flat();
  }
  report_.moved.sent += shard_->bytes();
  return copies_.send_whole(static_cast<size_t>(worker), shard_->flat());
}

void Coordinator::advance() {
  try {
    for (bool goes_on = true; goes_on;) {
      const auto worker = policy_->next_term();
      if (worker) {
        add(*worker);
      }
      const auto step = policy_->next_step();
      if (step) {
        make(*step);
      }
      goes_on = worker || step;
    }
    end(policy_->problem());
  } catch (const std::exception& error) {
    end("an update failed: " + ddp::detail::text_of(error));
  }
  changed_.notify_all();
}

void Coordinator::add(int worker) {
  auto& own = place(worker);
  const HeldGradients held = *std::exchange(own.gradients, std::nullopt);
  own.has_pushed = false;
  loss_ += own.loss;
  auto gradients =
      ddp::detail::explain("the gradients of worker " + std::to_string(worker),
                           [&] { return held.all(parameters_); });
  const bool is_kept = sum_.is_empty();
  sum_.add(std::move(gradients), 1.0 / policy_->terms(), held.memory());
  if (!is_kept) {
    spare_.push_back(held.memory());
  }
  room_ = std::max(room_, held.missing_room());
}

void Coordinator::make(const Step& step) {
  const double loss = std::exchange(loss_, 0);
  shard_->step(sum_.gradients(),
               {report_.updates,
                step.workers.front(),
                step.staleness,
                loss / static_cast<double>(step.workers.size())});
  spare_.push_back(sum_.clear());
  copies_.expire();
  ++report_.updates;
  const auto staleness = static_cast<size_t>(step.staleness);
  if (report_.staleness.size() <= staleness) {
    report_.staleness.resize(staleness + 1);
  }
  ++report_.staleness[staleness];
  if (after_update_) {
    after_update_(report_.updates);
  }
}

void Coordinator::end(const std::string& reason) {
  if (failure_.empty() && !reason.empty()) {
    failure_ = reason;
    changed_.notify_all();
  }
}

}  // namespace dp::detail
