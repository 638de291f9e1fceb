#include "ddp/amp/detail/unscale_gradients.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

namespace ddp::detail {
namespace {

/// Gradients of one device and dtype, which LibTorch unscales in one call.
using AlikeGradients = std::vector<at::Tensor>;

void add_gradient(std::vector<AlikeGradients>& lists,
                  const at::Tensor& values) {
  const auto is_alike = [&](const AlikeGradients& list) {
    return list.front().device() == values.device() &&
           list.front().scalar_type() == values.scalar_type();
  };
  const auto found = std::find_if(lists.begin(), lists.end(), is_alike);
  if (found == lists.end()) {
    lists.push_back({values});
  } else {
    found->push_back(values);
  }
}

std::vector<AlikeGradients> gradients_of(
    const torch::optim::Optimizer& optimizer) {
  std::vector<AlikeGradients> lists;
  // LibTorch's Module::parameters() lists a tied parameter several times.
  std::unordered_set<const c10::TensorImpl*> seen;
  size_t group = 0;
  for (const auto& each : optimizer.param_groups()) {
    for (size_t i = 0; i < each.params().size(); ++i) {
      const at::Tensor& grad = each.params()[i].grad();
      if (!grad.defined() || !seen.insert(grad.unsafeGetTensorImpl()).second) {
        continue;
      }
      TORCH_CHECK(grad.scalar_type() != c10::kHalf,
                  "Expected gradients of float to unscale, but parameter ",
                  i,
                  " of the optimizer's group ",
                  group,
                  " has one of float16; keep parameters in float and let an "
                  "AutocastGuard choose where to compute in float16");
      add_gradient(lists, grad.is_sparse() ? grad._values() : grad);
    }
    ++group;
  }
  return lists;
}

/// Copies to another device. A copy to the host blocks: otherwise the host
/// would read it too early.
at::Tensor moved(const at::Tensor& tensor, c10::Device device) {
  return tensor.to(device, tensor.scalar_type(), !device.is_cpu());
}

}  // namespace

at::Tensor unscale_gradients(const torch::optim::Optimizer& optimizer,
                             const at::Tensor& factor) {
  const c10::NoGradGuard no_grad;
  at::Tensor found_inf;
  for (const auto& gradients : gradients_of(optimizer)) {
    const auto device = gradients.front().device();
    auto found_here = at::zeros({}, factor.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(
        gradients, found_here, moved(factor, device));
    found_here = moved(found_here, factor.device());
    found_inf = found_inf.defined() ? found_inf.add_(found_here) : found_here;
  }
  return found_inf;
}

}  // namespace ddp::detail
