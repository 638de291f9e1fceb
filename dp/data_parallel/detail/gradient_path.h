#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include "ddp/tensors/autograd_nodes.h"
#include "dp/data_parallel/detail/replica.h"
#include "dp/data_parallel/detail/scatter.h"

namespace dp::detail {

/// Adds the gradients of one parameter over all replicas except replica 0, in
/// the order of the replicas, and passes the sum on to `end`.
///
/// Input k is the gradient of replica k. Input 0 is never connected; its
/// metadata makes autograd run the node on the device of the module. The output
/// is undefined if no replica has a gradient. Differentiable (create_graph).
///
/// Source: ReduceAdd of torch/nn/parallel/data_parallel.h.
class ReduceBackward : public torch::autograd::Node {
 public:
  /// @param source  the module's parameter
  ReduceBackward(const at::Tensor& source,
                 torch::autograd::Edge end,
                 TrafficCounters traffic);

  std::string name() const override { return "dp::ReduceBackward"; }

 protected:
  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override;

 private:
  c10::Device device_;  // of the module
  TrafficCounters traffic_;
};

/// Connects the replicas' parameters to the module's parameters in the autograd
/// graph, as the outputs of a differentiable copy. A backward pass adds the
/// replicas' gradients to the gradients of the module's own forward. Each
/// parameter has its own ReduceBackward, so the graph contains only the
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

  /// Connects the members of a replica to the path. After its parameter was
  /// frozen, a member stays on an older path as long as a graph uses that path.
  /// @param all  all replicas of the module
  void connect(const Replica& replica, const std::vector<Replica>& all) const;

 private:
  // By slot; invalid without gradient.
  std::vector<torch::autograd::Edge> ends_;
  std::vector<ddp::detail::NodePtr> nodes_;  // by slot; null without gradient
  c10::Stream stream_;                       // current, of the module's device
};

}  // namespace dp::detail
