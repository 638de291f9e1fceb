#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "dp/servers/detail/coordinator.h"
#include "dp/servers/detail/link.h"

namespace dp::detail {

/// Serves all workers, with one thread per worker, while the calling thread
/// makes the updates. Returns when every worker has finished, has been told why
/// the job ended, or is lost.
///
/// @param links  by worker. The link of a lost worker is closed.
/// @param patience  interval at which a waiting worker receives a sign of life.
void serve_workers(std::vector<std::unique_ptr<Link>>& links,
                   Coordinator& coordinator,
                   std::chrono::milliseconds patience);

}  // namespace dp::detail
