#pragma once

#include <deque>
#include <functional>
#include <utility>

namespace launcher {

/// One step at a time: what a step causes comes after it.
class TaskQueue {
 public:
  using Step = std::function<void()>;

  /// Runs it and all that they add meanwhile; from within a step, adds it.
  /// @return whether it ran here, and nothing is left to do
  bool run(Step step) {
    waiting_.push_back(std::move(step));
    if (is_running_) {
      return false;
    }
    is_running_ = true;
    while (!waiting_.empty()) {
      const Step next = std::move(waiting_.front());
      waiting_.pop_front();
      next();
    }
    is_running_ = false;
    return true;
  }

 private:
  std::deque<Step> waiting_;
  bool is_running_ = false;
};

}  // namespace launcher
