#pragma once

#include <memory>

#include <torch/autograd.h>
#include <torch/types.h>

namespace ddp::test {

/// See `nested`.
struct NestedPass : torch::autograd::Function<NestedPass> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& x,
                               const std::shared_ptr<torch::Tensor>& weight) {
    context->save_for_backward({x});
    context->saved_data["weight"] = *weight;
    return x * weight->detach();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list gradients) {
    const torch::AutoGradMode with_graph(true);
    auto x = context->get_saved_variables()[0].detach().requires_grad_();
    (x * context->saved_data["weight"].toTensor()).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

/// Returns weight * x. The weight's gradient is computed in a nested backward
/// pass, as in PyTorch's reentrant checkpoint.
inline torch::Tensor nested(const torch::Tensor& x,
                            const torch::Tensor& weight) {
  return NestedPass::apply(x, std::make_shared<torch::Tensor>(weight));
}

}  // namespace ddp::test
