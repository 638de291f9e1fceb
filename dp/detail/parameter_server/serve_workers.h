#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "dp/detail/parameter_server/coordinator.h"
#include "dp/detail/parameter_server/link.h"

namespace dp::detail {

/// A server's side of the conversations, a thread a worker: returns when every
/// worker has finished, has heard why the job has ended, or is gone.
///
/// @param links  by worker. That of a worker that is gone is closed.
/// @param patience  how long a worker waits for an answer before it is told
///   that the server is still there.
/// @param wait_for  the connection of a worker that was gone and has come back,
///   or null. Null where workers do not come back.
using WaitFor = std::function<std::unique_ptr<Link>(int worker)>;
void serve_workers(std::vector<std::unique_ptr<Link>>& links,
                   Coordinator& coordinator,
                   std::chrono::milliseconds patience,
                   const WaitFor& wait_for = nullptr);

}  // namespace dp::detail
