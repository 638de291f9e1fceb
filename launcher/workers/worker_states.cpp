#include "launcher/workers/worker_states.h"

#include <algorithm>

#include "launcher/machine/process_state.h"

namespace launcher {

std::vector<WorkerState> states_of(const std::list<Worker>& workers,
                                   const std::vector<WorkerExit>& exits,
                                   std::optional<ProgressWatch>& progress) {
  std::vector<WorkerState> states;
  for (const Worker& worker : workers) {
    if (states.size() == kMostWorkerStates) {
      break;
    }
    WorkerState state;
    state.rank = worker.spec.rank;
    state.local_rank = worker.spec.local_rank;
    state.pid = worker.process.pid();
    state.asked_by = worker.asked_by;
    const auto exit =
        std::find_if(exits.begin(), exits.end(), [&](const WorkerExit& entry) {
          return entry.local_rank == state.local_rank;
        });
    if (exit != exits.end()) {
      state.end = exit->status;
    } else {
      state.is_stopped = is_stopped(state.pid);
    }
    if (progress) {
      state.progress = progress->progress_of(state.local_rank);
    }
    states.push_back(std::move(state));
  }
  return states;
}

}  // namespace launcher
