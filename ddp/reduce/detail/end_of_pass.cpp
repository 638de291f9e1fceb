#include "ddp/reduce/detail/end_of_pass.h"

#include <deque>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

namespace ddp::detail {
namespace {

struct Listener {
  std::function<bool(bool is_nested)> on_end;
  std::shared_ptr<void> life;
};

void queue(Listener listener);

/// Listeners of one graph task. Calls all of them, while autograd skips the
/// callbacks after one that throws. Lives as long as its graph task.
class QueuedEnds {
 public:
  explicit QueuedEnds(Listener first) {
    listeners_.push_back(std::move(first));
  }
  QueuedEnds(const QueuedEnds&) = delete;
  QueuedEnds& operator=(const QueuedEnds&) = delete;

  /// A nested task is destroyed when its backward() returns. Only now is the
  /// enclosing task the thread's current one again.
  ~QueuedEnds() {
    if (torch::autograd::get_current_graph_task_id() == -1) {
      return;
    }
    try {
      for (auto& listener : continuing_) {
        queue(std::move(listener));
      }
    } catch (...) {  // the next pass reports that this one was left
    }
  }

  void add(Listener listener) {
    const std::lock_guard lock(mutex_);
    listeners_.push_back(std::move(listener));
  }

  void call() {
    // The node of the enclosing pass that called backward().
    const bool is_nested = torch::autograd::get_current_node() != nullptr;
    std::exception_ptr failure;
    while (auto listener = take_next()) {
      try {
        if (!listener->on_end(is_nested)) {
          continuing_.push_back(std::move(*listener));
        }
      } catch (...) {
        failure = failure ? failure : std::current_exception();
      }
    }
    if (failure) {
      std::rethrow_exception(failure);
    }
  }

 private:
  std::optional<Listener> take_next() {
    const std::lock_guard lock(mutex_);
    if (listeners_.empty()) {
      return std::nullopt;
    }
    auto next = std::move(listeners_.front());
    listeners_.pop_front();
    return next;
  }

  std::mutex mutex_;
  std::deque<Listener> listeners_;
  std::vector<Listener> continuing_;
};

/// The queues of all running graph tasks, by the task's id.
class TaskEnds {
 public:
  /// The threads of several devices run one task; the first of them queues the
  /// callback.
  void add(int task, Listener listener) {
    std::shared_ptr<QueuedEnds> ends;  // its destructor may call this
    const std::lock_guard lock(mutex_);
    if (const auto found = ends_.find(task); found != ends_.end()) {
      ends = found->second.lock();
    }
    if (ends) {
      ends->add(std::move(listener));
      return;
    }
    ends = std::make_shared<QueuedEnds>(std::move(listener));
    torch::autograd::Engine::get_default_engine().queue_callback(
        [ends] { ends->call(); });
    insert(task, ends);
  }

 private:
  void insert(int task, const std::shared_ptr<QueuedEnds>& ends) {
    for (auto it = ends_.begin(); it != ends_.end();) {
      it = it->second.expired() ? ends_.erase(it) : std::next(it);
    }
    ends_[task] = ends;
  }

  std::mutex mutex_;
  std::unordered_map<int, std::weak_ptr<QueuedEnds>> ends_;
};

void queue(Listener listener) {
  static TaskEnds tasks;
  tasks.add(torch::autograd::get_current_graph_task_id(), std::move(listener));
}

}  // namespace

std::weak_ptr<void> at_end_of_pass(std::function<bool(bool is_nested)> on_end) {
  const auto life = std::make_shared<char>();
  queue({std::move(on_end), life});
  return life;
}

}  // namespace ddp::detail
