#include "dp/detail/parameter_server/coordinator.h"

#include <utility>

#include <c10/util/Exception.h>

namespace dp::detail {
namespace {

using Lock = std::unique_lock<std::mutex>;
using std::chrono::milliseconds;

}  // namespace

Coordinator::Coordinator(std::unique_ptr<UpdatePolicy> policy,
                         const std::vector<at::Tensor>& parameters,
                         int workers)
    : policy_(std::move(policy)), losses_(static_cast<size_t>(workers)) {
  for (int worker = 0; worker < workers; ++worker) {
    gradients_.emplace_back(parameters);
  }
}

void Coordinator::serve(Shard& shard) {
  const std::lock_guard lock(mutex_);
  shard_ = &shard;
}

const at::Tensor& Coordinator::flat_gradients(int worker) const {
  return gradients_[static_cast<size_t>(worker)].flat();
}

void Coordinator::push(int worker, double loss) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) {
    return;
  }
  losses_[static_cast<size_t>(worker)] = loss;
  report_.moved.received += shard_->bytes();
  policy_->push(worker);
  advance();
}

void Coordinator::ask(int worker) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) {
    policy_->ask(worker);
    advance();
  }
}

std::optional<Coordinator::Parameters> Coordinator::take(
    int worker, milliseconds patience) {
  Lock lock(mutex_);
  if (!wait(lock, patience, [&] { return policy_->may_take(worker); })) {
    return std::nullopt;
  }
  policy_->take(worker);
  changed_.notify_all();  // the next in the queue may go
  return give();
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
  return give();
}

void Coordinator::lose(int worker, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) {
    policy_->lose(worker, reason);
    advance();
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

Coordinator::Parameters Coordinator::give() {
  report_.moved.sent += shard_->bytes();
  return {shard_->snapshot(), report_.updates};
}

void Coordinator::advance() {
  try {
    while (const auto step = policy_->next_step()) {
      make(*step);
    }
    end(policy_->problem());
  } catch (const c10::Error& error) {
    end("an update failed: " + std::string(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    end("an update failed: " + std::string(error.what()));
  }
  changed_.notify_all();
}

void Coordinator::make(const Step& step) {
  std::vector<FlatGradients*> gradients;
  double loss = 0;
  for (const int worker : step.workers) {
    gradients.push_back(&gradients_[static_cast<size_t>(worker)]);
    loss += losses_[static_cast<size_t>(worker)];
  }
  shard_->step(gradients,
               {report_.updates,
                step.workers.front(),
                step.staleness,
                loss / static_cast<double>(step.workers.size())});
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
