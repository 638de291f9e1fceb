#include "ddp/reduce/detail/autograd_hooks.h"

#include <cstddef>
#include <deque>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "ddp/tensors/same_layout.h"

namespace ddp::detail {
namespace {

std::string description_of(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(),
                  " ",
                  tensor.sizes(),
                  " with strides ",
                  tensor.strides());
}

at::Tensor without_memory(const at::Tensor& tensor) {
  return at::empty_strided(
      tensor.sizes(),
      tensor.strides(),
      at::TensorOptions().dtype(tensor.scalar_type()).device(c10::kMeta));
}

}  // namespace

/// The object that owns a parameter, and the parameter's index there.
struct GradHooks::Link {
  std::weak_ptr<Listener> owner;
  size_t index = 0;
  bool throws_without_owner = false;
  bool has_local = false;  // a gradient came in a pass of this rank alone

  bool is_of(const std::shared_ptr<Listener>& other) const {
    return !owner.owner_before(other) && !other.owner_before(owner);
  }
};

struct GradHooks::Hook : torch::autograd::PostAccumulateGradHook {
  void operator()(const at::Tensor& parameter) override {
    bool is_untouched = true;
    if (next) {
      const auto version = parameter._version();
      const bool had_grad = parameter.grad().defined();
      (*next)(parameter);
      is_untouched = parameter._version() == version &&
                     (parameter.grad().defined() || !had_grad);
    }
    if (const auto listener = link->owner.lock()) {
      (*listener)(link->index, is_untouched);
      return;
    }
    TORCH_CHECK(!link->throws_without_owner,
                "Expected the DistributedDataParallel (or Reducer) to live "
                "until backward() of its outputs has returned, but it was "
                "destroyed before, and the gradients would stay this rank's "
                "own; keep it, or wrap the module again");
  }

  std::shared_ptr<Link> link = std::make_shared<Link>();
  std::unique_ptr<PostAccumulateGradHook> next;  // the program's own
};

GradHooks::GradHooks(std::vector<NamedParameter> parameters, Listener listener)
    : listener_(std::make_shared<Listener>(std::move(listener))) {
  hooked_.reserve(parameters.size());
  for (auto& parameter : parameters) {
    const auto device = parameter.tensor.device();
    auto like = without_memory(parameter.tensor);
    hooked_.push_back({std::move(parameter), std::move(like), device, nullptr});
  }
  claim();
}

GradHooks::~GradHooks() {
  for (const auto& hooked : hooked_) {
    if (hooked.link && hooked.link->is_of(listener_)) {
      hooked.link->throws_without_owner = is_needed_;
    }
  }
}

void GradHooks::claim() {
  for (size_t index = 0; index < hooked_.size(); ++index) {
    Hooked& hooked = hooked_[index];
    check_unchanged(hooked);
    if (!is_installed(index)) {
      install(hooked);
    }
    if (!hooked.link->is_of(listener_)) {
      hooked.link->owner = listener_;
      hooked.link->index = index;
    }
  }
}

bool GradHooks::is_installed(size_t index) const {
  const auto& place = torch::autograd::impl::post_acc_grad_hooks(
      hooked_[index].parameter.tensor);
  return place && place.get() == hooked_[index].hook;
}

/// Keeps a hook of the program, which LibTorch stores in the same place, and
/// notices one that has replaced this hook.
void GradHooks::install(Hooked& hooked) const {
  auto& place =
      torch::autograd::impl::post_acc_grad_hooks(hooked.parameter.tensor);
  auto* hook = dynamic_cast<Hook*>(place.get());
  if (hook == nullptr) {
    auto own = std::make_unique<Hook>();
    hook = own.get();
    own->next = std::move(place);
    torch::autograd::impl::set_post_acc_grad_hooks(hooked.parameter.tensor,
                                                   std::move(own));
  }
  hooked.hook = static_cast<torch::autograd::PostAccumulateGradHook*>(hook);
  hooked.link = hook->link;
  // On a GPU the node would keep the stream of this call for all passes.
  if (hooked.device.is_cpu()) {
    hooked.accumulator =
        torch::autograd::impl::grad_accumulator(hooked.parameter.tensor);
  }
}

void GradHooks::check_unchanged(const Hooked& hooked) const {
  const auto& [name, tensor, sparse] = hooked.parameter;
  const bool is_unchanged = has_same_layout(tensor, hooked.like) &&
                            tensor.scalar_type() == hooked.like.scalar_type() &&
                            tensor.device() == hooked.device;
  TORCH_CHECK(is_unchanged || !tensor.requires_grad(),
              "Expected parameter ",
              name,
              " to stay ",
              description_of(hooked.like),
              " on ",
              hooked.device,
              ", as it was when the module was wrapped, but it is ",
              description_of(tensor),
              " on ",
              tensor.device(),
              " now. Convert or move the module before it is wrapped, and give "
              "torch::load this rank's device");
}

const NamedParameter* GradHooks::first_foreign() const {
  for (const auto& hooked : hooked_) {
    if (!hooked.link->is_of(listener_) && !hooked.link->owner.expired() &&
        hooked.parameter.tensor.requires_grad()) {
      return &hooked.parameter;
    }
  }
  return nullptr;
}

void GradHooks::record_local(size_t index) {
  hooked_[index].link->has_local = true;
}

bool GradHooks::has_local(size_t index) const {
  const Hooked& hooked = hooked_[index];
  return hooked.link->has_local && hooked.parameter.tensor.grad().defined();
}

void GradHooks::clear_local() {
  for (const auto& hooked : hooked_) {
    hooked.link->has_local = false;
  }
}

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
