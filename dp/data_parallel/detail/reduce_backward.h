#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include "dp/data_parallel/detail/traffic_counters.h"

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

}  // namespace dp::detail
