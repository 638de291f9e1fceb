#pragma once

#include <chrono>
#include <string>

#include "launcher/job/report/report.h"
#include "launcher/plan/plan.h"

// Events of torchrun for --event-log-handler=console, one line of JSON each,
// with torchrun's fields. Fields that ddprun does not have are null: ids of
// workers that have just been started, the rendezvous' name, durations. Pure
// functions.
namespace launcher {

/// Returns a START event for each worker.
std::string events_of_start(const Job& job, const World& world);

/// Returns an event for each worker of the last attempt: SUCCEEDED, FAILED or
/// TERMINATED (stopped by ddprun). Then returns SUCCEEDED or FAILED for ddprun,
/// which takes the place of torchrun's agent.
///
/// @param run_time of all attempts
std::string events_of_end(const Job& job,
                          const World& world,
                          const AttemptResult& result,
                          const Report& report,
                          std::chrono::milliseconds run_time);

}  // namespace launcher
