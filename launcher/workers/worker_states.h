#pragma once

#include <list>
#include <optional>
#include <vector>

#include "launcher/workers/progress/progress_watch.h"
#include "launcher/workers/progress/worker_state.h"
#include "launcher/workers/worker.h"

namespace launcher {

/// Returns the current state of the workers, of at most kMostWorkerStates.
///
/// @param exits of the workers that have ended
std::vector<WorkerState> states_of(const std::list<Worker>& workers,
                                   const std::vector<WorkerExit>& exits,
                                   std::optional<ProgressWatch>& progress);

}  // namespace launcher
