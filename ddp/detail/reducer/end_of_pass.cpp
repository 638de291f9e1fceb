#include "ddp/detail/reducer/end_of_pass.h"

#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

namespace ddp::detail {
namespace {

using IsOver = std::function<bool(bool is_nested)>;

void queue(IsOver is_over, std::shared_ptr<void> life);

/// Lives as long as the graph task that it is queued on.
struct QueuedEnd {
  QueuedEnd(IsOver is_over, std::shared_ptr<void> life)
      : is_over(std::move(is_over)), life(std::move(life)) {}
  QueuedEnd(const QueuedEnd&) = delete;
  QueuedEnd& operator=(const QueuedEnd&) = delete;

  /// A nested task goes when the call of backward() returns: only now is the
  /// one around it the thread's current one again.
  ~QueuedEnd() {
    if (!goes_on || torch::autograd::get_current_graph_task_id() == -1) {
      return;
    }
    try {
      queue(std::move(is_over), std::move(life));
    } catch (...) {  // then the pass has been left, which the next one tells
    }
  }

  IsOver is_over;
  std::shared_ptr<void> life;
  bool goes_on = false;
};

void queue(IsOver is_over, std::shared_ptr<void> life) {
  torch::autograd::Engine::get_default_engine().queue_callback(
      [end = std::make_shared<QueuedEnd>(std::move(is_over), std::move(life))] {
        // The node of the pass around, which called backward().
        const bool is_nested = torch::autograd::get_current_node() != nullptr;
        end->goes_on = !end->is_over(is_nested);
      });
}

}  // namespace

std::weak_ptr<void> at_end_of_pass(IsOver is_over) {
  const auto life = std::make_shared<char>();
  queue(std::move(is_over), life);
  return life;
}

}  // namespace ddp::detail
