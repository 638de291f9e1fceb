#pragma once

#include <cstdint>

namespace samples {

/// Bytes that the kernel has sent from this process's open TCP connections
/// since they were made, as TCP_INFO counts them, each once: what messages
/// really cost, with everything that a library puts around them.
///
/// Needs Linux 4.19; counts nothing on an older one.
int64_t bytes_sent_by_sockets();

}  // namespace samples
