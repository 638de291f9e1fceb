#include "ddp/detail/reducer/grad_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

namespace ddp::detail {
namespace {

struct AccumulatedHook : torch::autograd::FunctionPostHook {
  AccumulatedHook(std::shared_ptr<const GradHooks::Listener> listener,
                  size_t index)
      : listener(std::move(listener)), index(index) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    (*listener)(index);
    return outputs;  // AccumulateGrad has none
  }

  std::shared_ptr<const GradHooks::Listener> listener;
  size_t index;
};

}  // namespace

GradHooks::GradHooks(const std::vector<at::Tensor>& parameters,
                     Listener listener)
    : listener_(std::make_shared<const Listener>(std::move(listener))) {
  hooked_.reserve(parameters.size());
  for (size_t index = 0; index < parameters.size(); ++index) {
    auto node = torch::autograd::impl::grad_accumulator(parameters[index]);
    TORCH_INTERNAL_ASSERT(node, "parameter without a gradient accumulator");
    const auto key = node->add_post_hook(
        std::make_unique<AccumulatedHook>(listener_, index));
    hooked_.push_back({std::move(node), key});
  }
}

GradHooks::~GradHooks() {
  for (const auto& hooked : hooked_) {
    hooked.node->del_post_hook(hooked.key);
  }
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
