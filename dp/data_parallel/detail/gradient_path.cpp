#include "dp/data_parallel/detail/gradient_path.h"

#include <limits>
#include <utility>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include "ddp/tensors/streams.h"

namespace dp::detail {
namespace {

namespace ag = torch::autograd;
using ddp::detail::NodePtr;

/// Maximum priority: the node runs before every other ready node, as autograd's
/// own gradient accumulation does. The memory of its inputs is then free for
/// the next gradients.
constexpr uint64_t kFirst = std::numeric_limits<uint64_t>::max();

bool is_dense(const at::Tensor& grad) {
  return grad.layout() == c10::kStrided;
}

/// Copies `grad` to `device` if it is on another one. The copy runs on this
/// thread's current stream of the gradient's own device. This stream may differ
/// from the stream on which the gradient's memory was allocated.
at::Tensor fetch(const at::Tensor& grad, c10::Device device) {
  if (grad.device() != device && is_dense(grad)) {
    ddp::detail::record_stream(grad);
  }
  return to_device(grad, device);
}

/// Returns the edge that receives the gradient of a parameter, or an invalid
/// edge if the parameter needs no gradient.
ag::Edge end_of(const at::Tensor& source) {
  return source.requires_grad() ? ag::impl::gradient_edge(source) : ag::Edge();
}

/// Returns true if a graph outside of the replicas' tensors holds the tensor's
/// gradient function.
bool is_in_graph(const at::Tensor& tensor, const std::vector<Replica>& all) {
  const auto& node = tensor.grad_fn();
  if (!node) {
    return false;
  }
  size_t own = 0;
  for (const auto& replica : all) {
    for (const auto& member : replica.members) {
      own += member.tensor.grad_fn() == node ? 1 : 0;
    }
  }
  return static_cast<size_t>(node.use_count()) > own;
}

}  // namespace

ReduceBackward::ReduceBackward(const at::Tensor& source,
                               ag::Edge end,
                               TrafficCounters traffic)
    : Node(kFirst, {std::move(end)}),
      device_(source.device()),
      traffic_(std::move(traffic)) {
  add_input_metadata(source);
}

ag::variable_list ReduceBackward::apply(ag::variable_list&& grads) {
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

GradientPath::GradientPath(const StateLayout& layout,
                           const std::vector<Replica>& replicas,
                           const TrafficCounters& traffic)
    : stream_(ddp::detail::current_stream(layout.device)) {
  for (size_t slot = 0; slot < layout.slots.size(); ++slot) {
    const auto& source = layout.slots[slot].source;
    ends_.push_back(end_of(source));
    nodes_.emplace_back();
    if (!ends_.back().is_valid()) {
      continue;
    }
    nodes_.back() =
        ddp::detail::make_node<ReduceBackward>(source, ends_.back(), traffic);
    for (const auto& replica : replicas) {
      nodes_.back()->add_input_metadata(replica.pieces[slot]);
    }
  }
}

bool GradientPath::is_valid_for(const StateLayout& layout) const {
  for (size_t slot = 0; slot < ends_.size(); ++slot) {
    if (end_of(layout.slots[slot].source) != ends_[slot]) {
      return false;
    }
  }
  return ddp::detail::current_stream(layout.device) == stream_;
}

void GradientPath::connect(const Replica& replica,
                           const std::vector<Replica>& all) const {
  const auto input = static_cast<uint32_t>(replica.index);
  for (const auto& member : replica.members) {
    const auto& node = nodes_[member.slot];
    if (node || !is_in_graph(member.tensor, all)) {
      ag::impl::set_gradient_edge(member.tensor,
                                  node ? ag::Edge(node, input) : ag::Edge());
    }
  }
}

}  // namespace dp::detail
