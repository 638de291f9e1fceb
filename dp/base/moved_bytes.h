#pragma once

#include <cstdint>

namespace dp {

/// Payload bytes (gradients, parameters and buffers) that one device or process
/// has sent and received. Headers and padding on the wire are not counted.
struct MovedBytes {
  int64_t sent = 0;      ///< bytes sent
  int64_t received = 0;  ///< bytes received
};

}  // namespace dp
