#include "dp/data_parallel/detail/gradient_path.h"

#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/variable.h>

#include "dp/data_parallel/detail/reduce_backward.h"

namespace dp::detail {
namespace {

namespace ag = torch::autograd;
using ddp::detail::NodePtr;

/// Returns the edge that receives the gradient of a parameter, or an invalid
/// edge if the parameter needs no gradient.
ag::Edge end_of(const at::Tensor& source) {
  return source.requires_grad() ? ag::impl::gradient_edge(source) : ag::Edge();
}

std::optional<c10::Stream> current_stream(c10::Device device) {
  return device.is_cpu() ? std::nullopt
                         : std::optional<c10::Stream>(
                               c10::impl::VirtualGuardImpl(device.type())
                                   .getStream(device));
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

GradientPath::GradientPath(const StateLayout& layout,
                           const std::vector<Replica>& replicas,
                           const TrafficCounters& traffic)
    : stream_(current_stream(layout.device)) {
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
  return current_stream(layout.device) == stream_;
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
