#pragma once

#include <cstdint>

#include <torch/types.h>

namespace dp {

/// Bytes that went between the first device and one replica since the wrapper
/// was made or `reset_traffic()` called.
///
/// Of two replicas on one device, which share its memory, it says what would
/// have to be sent between two devices. Gradients of inputs and outputs, which
/// are as large as those, are not counted.
struct ReplicaTraffic {
  torch::Device device;
  int64_t state_bytes = 0;     ///< parameters and buffers, to the replica
  int64_t input_bytes = 0;     ///< tensors among the arguments, to the replica
  int64_t output_bytes = 0;    ///< tensors in its results, from the replica
  int64_t gradient_bytes = 0;  ///< of parameters, from the replica
};

}  // namespace dp
