#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include "dp/detail/data_parallel/gradient_lane.h"
#include "dp/detail/data_parallel/traffic_counters.h"

namespace dp::detail {

/// The gradients of some parameters of a replica, on their way to the module's
/// device in one piece.
struct Parcel {
  GradientLane::Sent sent;
  /// By parameter, pieces of what was sent, whose memory is nobody else's;
  /// undefined where the gradient does not come with it.
  std::vector<at::Tensor> gradients;
};

/// Sends the gradients of n parameters of one dtype from a replica's device to
/// the module's: the dense ones in a parcel, output n; others one by one. With
/// create_graph all go one by one, so that it can be differentiated.
class SendBackward : public torch::autograd::Node {
 public:
  SendBackward(torch::autograd::edge_list edges,
               size_t replica,
               c10::Device target,
               GradientLane lane,
               TrafficCounters traffic);

  std::string name() const override { return "dp::SendBackward"; }

 protected:
  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override;

 private:
  at::Tensor pack(torch::autograd::variable_list& grads,
                  const std::vector<size_t>& members) const;

  size_t replica_;
  c10::Device target_;
  GradientLane lane_;
  TrafficCounters traffic_;
};

/// Adds up the gradients of all replicas but the first: k senders with the
/// gradients of n parameters each are k n inputs, sender by sender, and n
/// outputs. The parcels of the remote senders follow as further inputs. An
/// output that no sender has a gradient for stays undefined.
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

  /// What stands for a parcel in the metadata of an input.
  static at::Tensor sample_parcel();

 protected:
  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override;

 private:
  std::vector<Sender> senders_;
  TrafficCounters traffic_;
};

}  // namespace dp::detail
