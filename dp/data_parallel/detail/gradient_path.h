#pragma once

#include <optional>
#include <vector>

#include <c10/core/Stream.h>
#include <torch/csrc/autograd/edge.h>

#include "ddp/tensors/autograd_nodes.h"
#include "dp/data_parallel/detail/replica.h"
#include "dp/data_parallel/detail/traffic_counters.h"

namespace dp::detail {

/// Makes the replicas' parameters the outcome of a differentiable copy of the
/// module's: a backward pass adds the replicas' gradients to that of the
/// module's own forward. Each parameter has a node of its own (ReduceBackward),
/// so the graph leads to the parameters that a forward has used and to no
/// other. A parameter that needs no gradient gets none.
///
/// The nodes belong to no one forward: they serve until `leads_to` is false.
class GradientPath {
 public:
  GradientPath(const StateLayout& layout,
               const std::vector<Replica>& replicas,
               const TrafficCounters& traffic);

  /// Whether the path still ends at the module's parameters that need
  /// gradients, on the current stream.
  bool leads_to(const StateLayout& layout) const;

  /// Puts the members of a replica at its beginning. A member that is frozen by
  /// now stays on an older path as long as a graph leads there, which needs it.
  /// @param all  of the module.
  void connect(const Replica& replica, const std::vector<Replica>& all) const;

 private:
  std::vector<torch::autograd::Edge> ends_;  // by slot; none where no gradient
  std::vector<ddp::detail::NodePtr> nodes_;  // by slot; null where no gradient
  std::optional<c10::Stream> stream_;        // of the module's device
};

}  // namespace dp::detail
