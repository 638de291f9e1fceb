#pragma once

#include <cstdint>

#include <torch/types.h>

namespace dp {

/// Bytes transferred between the first device and one replica since the wrapper
/// was created or since the last `reset_traffic()`. Copies that make or remake
/// a replica are not counted.
///
/// For two replicas on one device, which share its memory, the numbers are the
/// bytes that would be sent between two devices. Gradients of inputs and
/// outputs are not counted; they are as large as the inputs and outputs.
///
/// Inputs and outputs are counted wherever they come from or go to, also if
/// they stay on their device. Replica 0, the module itself, has no state and
/// gradient bytes. `forward_each` counts no outputs, and with one device only
/// inputs are counted.
struct ReplicaTraffic {
  torch::Device device;        ///< device of the replica
  int64_t state_bytes = 0;     ///< parameters and buffers, to the replica
  int64_t input_bytes = 0;     ///< tensors among the arguments, to the replica
  int64_t output_bytes = 0;    ///< tensors in its results, from the replica
  int64_t gradient_bytes = 0;  ///< of parameters, from the replica
};

}  // namespace dp
