#pragma once

#include <optional>
#include <vector>

#include <c10/core/Stream.h>
#include <torch/csrc/autograd/edge.h>

#include "ddp/tensors/autograd_nodes.h"
#include "dp/data_parallel/detail/replica.h"
#include "dp/data_parallel/detail/traffic_counters.h"

namespace dp::detail {

/// Connects the replicas' parameters to the module's parameters in the autograd
/// graph, as the outputs of a differentiable copy. A backward pass adds the
/// replicas' gradients to the gradients of the module's own forward. Each
/// parameter has its own node (ReduceBackward), so the graph contains only the
/// parameters that a forward has used. A parameter that needs no gradient has
/// no node.
///
/// The nodes are independent of a particular forward. They are reused until
/// `is_valid_for` returns false.
class GradientPath {
 public:
  GradientPath(const StateLayout& layout,
               const std::vector<Replica>& replicas,
               const TrafficCounters& traffic);

  /// Returns true if the path still ends at the module's parameters that need
  /// gradients, and was made for the current stream.
  bool is_valid_for(const StateLayout& layout) const;

  /// Connects the members of a replica to the path. A member whose parameter
  /// has been frozen stays on an older path as long as a graph uses that path.
  /// @param all  all replicas of the module
  void connect(const Replica& replica, const std::vector<Replica>& all) const;

 private:
  // By slot; invalid without gradient.
  std::vector<torch::autograd::Edge> ends_;
  std::vector<ddp::detail::NodePtr> nodes_;  // by slot; null without gradient
  std::optional<c10::Stream> stream_;        // current, of the module's device
};

}  // namespace dp::detail
