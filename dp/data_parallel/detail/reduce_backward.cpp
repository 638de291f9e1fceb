#include "dp/data_parallel/detail/reduce_backward.h"

#include <limits>
#include <utility>

#include <ATen/ops/record_stream.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "dp/data_parallel/detail/scatter.h"

namespace dp::detail {
namespace {

/// Maximum priority: the node runs before every other ready node, as autograd's
/// own gradient accumulation does. The memory of its inputs is then free for
/// the next gradients.
constexpr uint64_t kFirst = std::numeric_limits<uint64_t>::max();

bool is_dense(const at::Tensor& grad) {
  return grad.layout() == c10::kStrided;
}

/// Copies `grad` to `device` if it is on another one. The copy runs on this
/// thread's current stream of the gradient's own device. This stream may differ
/// from the stream on which the gradient's memory was allocated, hence
/// record_stream.
at::Tensor fetch(const at::Tensor& grad, c10::Device device) {
  const auto from = grad.device();
  if (from != device && !from.is_cpu() && is_dense(grad)) {
    grad.record_stream(
        c10::impl::VirtualGuardImpl(from.type()).getStream(from));
  }
  return to_device(grad, device);
}

}  // namespace

ReduceBackward::ReduceBackward(const at::Tensor& source,
                               torch::autograd::Edge end,
                               TrafficCounters traffic)
    : Node(kFirst, {std::move(end)}),
      device_(source.device()),
      traffic_(std::move(traffic)) {
  add_input_metadata(source);
}

torch::autograd::variable_list ReduceBackward::apply(
    torch::autograd::variable_list&& grads) {
  at::Tensor sum;
  bool is_own = false;  // no other tensor shares the sum's memory
  for (size_t replica = 1; replica < grads.size(); ++replica) {
    const auto grad = std::move(grads[replica]);
    if (!grad.defined()) {
      continue;
    }
    (*traffic_)[replica].gradients += bytes_of(grad);
    const auto fetched = fetch(grad, device_);
    if (!sum.defined()) {
      sum = fetched;
      is_own = !fetched.is_same(grad) && !c10::GradMode::is_enabled();
      continue;
    }
    if (is_own && is_dense(sum) && is_dense(fetched)) {
      sum.add_(fetched);
      continue;
    }
    // Dense + sparse is implemented, sparse + dense is not.
    sum = sum.is_sparse() ? fetched + sum : sum + fetched;
    is_own = !c10::GradMode::is_enabled();
  }
  return {sum};
}

}  // namespace dp::detail
