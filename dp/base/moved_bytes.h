#pragma once

#include <cstdint>

namespace dp {

/// Bytes of gradients, parameters and buffers that one device or process has
/// moved. What goes with them on a wire (headers, padding) is not counted.
struct MovedBytes {
  int64_t sent = 0;
  int64_t received = 0;
};

}  // namespace dp
