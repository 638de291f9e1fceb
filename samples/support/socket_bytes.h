#pragma once

#include <cstdint>

namespace samples {

/// Returns the bytes that the kernel has sent over the open TCP connections of
/// this process since they were opened, without retransmissions (TCP_INFO).
/// Neither shared memory nor NCCL's transports within a host and over
/// InfiniBand count. Needs Linux 4.19; returns 0 on an older kernel.
int64_t socket_bytes_sent();

}  // namespace samples
