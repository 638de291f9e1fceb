#pragma once

#include <deque>
#include <functional>
#include <utility>

namespace launcher {

/// Runs tasks one after the other. A task that another task adds runs after it,
/// so no task interrupts another.
class TaskQueue {
 public:
  using Task = std::function<void()>;

  /// Runs `task` and all tasks that it adds. Within a task, only adds `task`.
  ///
  /// @return whether the tasks ran in this call
  bool run(Task task) {
    waiting_.push_back(std::move(task));
    if (is_running_) {
      return false;
    }
    is_running_ = true;
    while (!waiting_.empty()) {
      const Task next = std::move(waiting_.front());
      waiting_.pop_front();
      next();
    }
    is_running_ = false;
    return true;
  }

 private:
  std::deque<Task> waiting_;
  bool is_running_ = false;
};

}  // namespace launcher
