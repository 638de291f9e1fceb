#pragma once

#include <vector>

#include <c10/core/Stream.h>
#include <torch/csrc/autograd/edge.h>

#include "dp/detail/data_parallel/replica.h"
#include "dp/detail/data_parallel/traffic_counters.h"

namespace dp::detail {

/// Makes the replicas' parameters the outcome of a differentiable copy of the
/// module's: a backward pass adds the replicas' gradients to that of the
/// module's own forward. Parameters that need no gradient get none.
///
/// Parameters go in buckets, so that the gradients of the last layers are added
/// up while those of the first are still computed. A replica on another device
/// sends the gradients of a bucket as one tensor, from that device's autograd
/// thread and on its lane: it waits for no one. The module's device adds them
/// up, and waits for them there. With create_graph the same is done by
/// differentiable operations, so it can be differentiated again. A parameter
/// that no replica used gets no gradient, as in the module.
///
/// Nothing in it belongs to one forward: it is laid once, for all replicas, and
/// serves until `leads_to` says otherwise.
class GradientPath {
 public:
  GradientPath(const StateLayout& layout,
               const std::vector<Replica>& replicas,
               const TrafficCounters& traffic);

  /// Whether it still ends at the module's parameters that need gradients, on
  /// the streams that are current.
  bool leads_to(const StateLayout& layout) const;

  /// Puts the members of a replica at its beginning. One that is frozen by now
  /// stays on an older path as long as a graph leads there, which needs it.
  /// @param all  of the module.
  void connect(const Replica& replica, const std::vector<Replica>& all) const;

 private:
  using Edges = std::vector<torch::autograd::Edge>;

  Edges ends_;                        // by slot; none where no gradient goes
  std::vector<Edges> starts_;         // by replica, from 1 on, and slot
  std::vector<c10::Device> devices_;  // that have streams
  std::vector<c10::Stream> streams_;  // current ones when it was laid
};

}  // namespace dp::detail
