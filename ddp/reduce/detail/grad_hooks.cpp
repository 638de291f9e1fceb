#include "ddp/reduce/detail/grad_hooks.h"

#include <mutex>
#include <utility>

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

namespace ddp::detail {
namespace {

std::string description_of(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(),
                  " ",
                  tensor.sizes(),
                  " with strides ",
                  tensor.strides());
}

bool has_layout_of(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && (a.strides() == b.strides() ||
                                    (a.is_contiguous() && b.is_contiguous()));
}

std::mutex& owners_mutex() {
  static std::mutex mutex;
  return mutex;
}

at::Tensor without_memory(const at::Tensor& tensor) {
  return at::empty_strided(
      tensor.sizes(),
      tensor.strides(),
      at::TensorOptions().dtype(tensor.scalar_type()).device(c10::kMeta));
}

}  // namespace

struct GradHooks::Owner {
  const Listener listener;
  std::weak_ptr<void> pass;  // guarded by owners_mutex()
};

struct GradHooks::Hook : torch::autograd::FunctionPostHook {
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    if (const auto object = owner.lock()) {
      object->listener(index);
    }
    return outputs;  // AccumulateGrad has none
  }

  bool is_of(const std::shared_ptr<Owner>& other) const {
    return !owner.owner_before(other) && !other.owner_before(owner);
  }

  std::weak_ptr<Owner> owner;
  size_t index = 0;
};

GradHooks::GradHooks(std::vector<NamedParameter> parameters, Listener listener)
    : self_(std::make_shared<Owner>(Owner{std::move(listener), {}})) {
  hooked_.reserve(parameters.size());
  for (auto& parameter : parameters) {
    const auto device = parameter.tensor.device();
    auto like = without_memory(parameter.tensor);
    hooked_.push_back(
        {std::move(parameter), std::move(like), device, nullptr, nullptr});
  }
  attach();
}

void GradHooks::attach() {
  for (size_t index = 0; index < hooked_.size(); ++index) {
    Hooked& hooked = hooked_[index];
    if (is_lost(hooked) && hooked.parameter.tensor.requires_grad()) {
      attach(hooked, index);
    }
  }
}

bool GradHooks::is_lost(const Hooked& hooked) const {
  return hooked.hook == nullptr || !hooked.hook->is_of(self_) ||
         torch::autograd::impl::try_get_grad_accumulator(
             hooked.parameter.tensor) != hooked.node;
}

void GradHooks::attach(Hooked& hooked, size_t index) {
  const auto& [name, tensor, sparse] = hooked.parameter;
  TORCH_CHECK(has_layout_of(tensor, hooked.like) &&
                  tensor.scalar_type() == hooked.like.scalar_type() &&
                  tensor.device() == hooked.device,
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
  hooked.node = torch::autograd::impl::grad_accumulator(tensor);
  TORCH_INTERNAL_ASSERT(hooked.node,
                        "parameter without a gradient accumulator");
  hooked.hook = nullptr;
  for (const auto& hook : hooked.node->post_hooks()) {
    if (auto* ours = dynamic_cast<Hook*>(hook.get())) {
      hooked.hook = ours;
    }
  }
  if (hooked.hook == nullptr) {
    auto hook = std::make_unique<Hook>();
    hooked.hook = hook.get();
    hooked.node->add_post_hook(std::move(hook));
  }
  hooked.hook->owner = self_;
  hooked.hook->index = index;
}

void GradHooks::begin_pass(std::weak_ptr<void> pass) {
  const std::lock_guard lock(owners_mutex());
  self_->pass = std::move(pass);
}

/// One lock for all objects: if two begin a pass on two threads, one of them
/// sees the pass of the other.
const NamedParameter* GradHooks::claim() {
  const std::lock_guard lock(owners_mutex());
  for (size_t index = 0; index < hooked_.size(); ++index) {
    auto& [parameter, like, device, node, hook] = hooked_[index];
    if (hook->is_of(self_) || !parameter.tensor.requires_grad()) {
      continue;
    }
    const auto owner = hook->owner.lock();
    if (owner && !owner->pass.expired()) {
      return &parameter;
    }
    hook->owner = self_;
    hook->index = index;
  }
  return nullptr;
}

std::vector<size_t> GradHooks::unreached() const {
  const auto* reached =
      torch::autograd::get_current_graph_task_nodes_in_graph();
  std::vector<size_t> result;
  for (size_t index = 0; reached != nullptr && index < hooked_.size();
       ++index) {
    if (reached->count(hooked_[index].node.get()) == 0) {
      result.push_back(index);
    }
  }
  return result;
}

}  // namespace ddp::detail
