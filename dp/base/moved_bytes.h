#pragma once

#include <cstdint>

namespace dp {

/// Payload bytes (gradients and parameters) that a worker or server has sent
/// and received since the start. The copy of parameters and buffers at the
/// start, headers and padding on the wire are not counted.
struct MovedBytes {
  int64_t sent = 0;      ///< bytes sent
  int64_t received = 0;  ///< bytes received
};

}  // namespace dp
