#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/csrc/autograd/function.h>

#include "dp/detail/data_parallel/traffic_counters.h"

namespace dp::detail {

/// Moves gradients of one dtype from a replica's device to the module's.
/// Without create_graph the dense ones go as one flat tensor; what comes out
/// shares its memory and is nobody else's.
class SendBackward : public torch::autograd::Node {
 public:
  SendBackward(torch::autograd::edge_list edges,
               size_t replica,
               c10::Device target,
               TrafficCounters traffic);

  std::string name() const override { return "dp::SendBackward"; }

 protected:
  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override;

 private:
  size_t replica_;
  c10::Device target_;
  TrafficCounters traffic_;
};

/// Adds up the gradients of all replicas but the first: k senders with the
/// gradients of n parameters each are k n inputs, sender by sender, and n
/// outputs. An output that no sender has a gradient for stays undefined.
class ReduceBackward : public torch::autograd::Node {
 public:
  struct Sender {
    size_t replica;
    bool is_remote;  ///< its gradients come through a SendBackward
  };

  ReduceBackward(torch::autograd::edge_list edges,
                 std::vector<Sender> senders,
                 TrafficCounters traffic);

  std::string name() const override { return "dp::ReduceBackward"; }

 protected:
  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override;

 private:
  std::vector<Sender> senders_;
  TrafficCounters traffic_;
};

}  // namespace dp::detail
