#include "dp/servers/detail/update_policy.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dp/servers/detail/staleness_gate.h"

namespace dp::detail {
namespace {

class Synchronous : public UpdatePolicy {
 public:
  explicit Synchronous(std::vector<std::string> names)
      : UpdatePolicy(std::move(names)),
        pushes_(names_.size(), 0),
        reasons_(names_.size()) {}

  void ask(int) override {}
  bool may_take(int worker) const override {
    return pushes_[static_cast<size_t>(worker)] == updates_;
  }
  void take(int) override {}

  void push(int worker) override {
    ++pushes_[static_cast<size_t>(worker)];
    check();
  }

  std::optional<int> next_term() override {
    if (added_ == terms() || pushes_[static_cast<size_t>(added_)] == updates_) {
      return std::nullopt;
    }
    return added_++;
  }

  std::optional<Step> next_step() override {
    if (added_ < terms()) {
      return std::nullopt;
    }
    added_ = 0;
    ++updates_;
    Step step;
    step.workers.resize(pushes_.size());
    std::iota(step.workers.begin(), step.workers.end(), 0);
    return step;
  }

  void drop(int) override {}
  int terms() const override { return static_cast<int>(pushes_.size()); }
  /// Gradients are added in the order of the workers, so that a training is
  /// reproducible.
  bool is_first(int worker) const override { return worker == added_; }
  bool blocks_updates_while_computing() const override { return true; }

 private:
  void on_leave(int) override { check(); }

  void on_lose(int worker, const std::string& reason) override {
    reasons_[static_cast<size_t>(worker)] = reason;
    check();
    check_anyone_stayed(reason);
  }

  /// Sets a problem if a worker that has left or is lost made fewer pushes than
  /// another worker.
  void check() {
    const auto most = std::max_element(pushes_.begin(), pushes_.end());
    for (size_t i = 0; i < pushes_.size(); ++i) {
      if (pushes_[i] == *most || stays_[i] == WorkerStatus::here) {
        continue;
      }
      set_problem(
          stays_[i] == WorkerStatus::lost
              ? reasons_[i]
              : "Expected all workers to push equally often, but " + names_[i] +
                    " finished after " + std::to_string(pushes_[i]) +
                    " pushes and " +
                    names_[static_cast<size_t>(most - pushes_.begin())] +
                    " made " + std::to_string(*most) +
                    "; give all workers equally many batches");
    }
  }

  std::vector<int64_t> pushes_;
  std::vector<std::string> reasons_;  // why a worker is lost
  int64_t updates_ = 0;
  int added_ = 0;  // number of workers whose gradients are in the next update
};

class Asynchronous : public UpdatePolicy {
 public:
  Asynchronous(std::vector<std::string> names, int64_t bound)
      : UpdatePolicy(std::move(names)), gate_(bound) {}

  void ask(int worker) override { gate_.ask(worker); }
  bool may_take(int worker) const override { return gate_.may_take(worker); }
  void take(int worker) override { gate_.take(worker); }
  void push(int worker) override { gate_.push(worker); }

  std::optional<int> next_term() override {
    if (const auto update = gate_.next_update()) {
      next_ = Step{{update->worker}, update->staleness};
      return update->worker;
    }
    return std::nullopt;
  }

  std::optional<Step> next_step() override {
    return std::exchange(next_, std::nullopt);
  }

  void drop(int worker) override { gate_.drop(worker); }
  int terms() const override { return 1; }
  bool is_first(int worker) const override { return gate_.is_first(worker); }
  bool blocks_updates_while_computing() const override { return false; }

 private:
  void on_leave(int worker) override { gate_.drop(worker); }

  void on_lose(int worker, const std::string& reason) override {
    gate_.drop(worker);
    check_anyone_stayed(reason);
  }

  StalenessGate gate_;
  std::optional<Step> next_;
};

}  // namespace

UpdatePolicy::UpdatePolicy(std::vector<std::string> names)
    : names_(std::move(names)), stays_(names_.size(), WorkerStatus::here) {}

void UpdatePolicy::leave(int worker) {
  stays_[static_cast<size_t>(worker)] = WorkerStatus::left;
  on_leave(worker);
}

void UpdatePolicy::lose(int worker, const std::string& reason) {
  lost_.push_back(worker);
  auto& stay = stays_[static_cast<size_t>(worker)];
  if (stay == WorkerStatus::here) {
    stay = WorkerStatus::lost;
    on_lose(worker, reason);
  }
}

void UpdatePolicy::check_anyone_stayed(const std::string& reason) {
  if (std::all_of(stays_.begin(), stays_.end(), [](WorkerStatus stay) {
        return stay == WorkerStatus::lost;
      })) {
    set_problem("no worker is left; the last: " + reason);
  }
}

bool UpdatePolicy::is_over() const {
  return std::none_of(stays_.begin(), stays_.end(), [](WorkerStatus stay) {
    return stay == WorkerStatus::here;
  });
}

void UpdatePolicy::set_problem(const std::string& problem) {
  if (problem_.empty()) {
    problem_ = problem;
  }
}

std::unique_ptr<UpdatePolicy> synchronous_updates(
    std::vector<std::string> names) {
  return std::make_unique<Synchronous>(std::move(names));
}

std::unique_ptr<UpdatePolicy> asynchronous_updates(
    std::vector<std::string> names, int64_t bound) {
  return std::make_unique<Asynchronous>(std::move(names), bound);
}

}  // namespace dp::detail
