#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "dp/servers/detail/coordinator.h"
#include "dp/servers/detail/link.h"

namespace dp::detail {

/// A server's side of the conversations, a thread a worker, while the calling
/// thread makes the updates. Returns when every worker has finished, has heard
/// why the job has ended, or is gone.
///
/// @param links  by worker. That of a worker that is gone is closed.
/// @param patience  how long a worker waits for an answer before it is told
///   that the server is still there.
void serve_workers(std::vector<std::unique_ptr<Link>>& links,
                   Coordinator& coordinator,
                   std::chrono::milliseconds patience);

}  // namespace dp::detail
