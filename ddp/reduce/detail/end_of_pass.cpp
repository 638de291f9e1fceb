#include "ddp/reduce/detail/end_of_pass.h"

#include <cstddef>
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

using torch::autograd::GraphTask;

struct Listener {
  PassEnd end;
  std::shared_ptr<void> life;
};

void queue(Listener listener);

/// Listeners of one graph task. Calls all of them, while autograd skips the
/// callbacks after one that throws. Lives as long as its graph task.
class QueuedEnds {
 public:
  explicit QueuedEnds(Listener first) : is_nested_(graph_task_depth() > 0) {
    listeners_.push_back(std::move(first));
  }
  QueuedEnds(const QueuedEnds&) = delete;
  QueuedEnds& operator=(const QueuedEnds&) = delete;

  /// A nested task is destroyed when its backward() returns. Only now is the
  /// enclosing task the thread's current one again.
  ~QueuedEnds() {
    const bool is_inside = torch::autograd::get_current_graph_task_id() != -1;
    for (auto& listener : continuing_) {
      try {
        if (is_inside) {
          queue(std::move(listener));
        } else {
          listener.end.on_lost();
        }
      } catch (...) {  // the next pass reports that this one was left
      }
    }
  }

  void add(Listener listener) {
    const std::lock_guard lock(mutex_);
    listeners_.push_back(std::move(listener));
  }

  void call() {
    // The node of the enclosing pass that called backward() runs on this
    // thread, unless another thread has ended the nested task.
    const bool knows_outer = torch::autograd::get_current_node() != nullptr;
    std::exception_ptr failure;
    while (auto listener = take_next()) {
      if (is_nested_ && knows_outer) {
        continuing_.push_back(std::move(*listener));
        continue;
      }
      try {
        is_nested_ ? listener->end.on_lost() : listener->end.on_end();
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

  const bool is_nested_;
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

/// LibTorch gives the current task's set of nodes, but neither the task nor its
/// depth; the set is a member of the task.
int graph_task_depth() {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr) {
    return 0;
  }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr size_t kPlace = offsetof(GraphTask, nodes_in_graph_);
#pragma GCC diagnostic pop
  const auto* task = reinterpret_cast<const GraphTask*>(
      reinterpret_cast<const std::byte*>(nodes) - kPlace);
  return task->reentrant_depth_;
}

std::weak_ptr<void> at_end_of_pass(PassEnd end) {
  const auto life = std::make_shared<char>();
  queue({std::move(end), life});
  return life;
}

}  // namespace ddp::detail
