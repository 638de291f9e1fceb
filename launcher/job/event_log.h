#pragma once

#include <chrono>
#include <string>

#include "launcher/job/report/report.h"
#include "launcher/plan/plan.h"

// --event-log-handler=console: torchrun's events, each a line of JSON with
// torchrun's fields. What ddprun does not have is null: ids of workers that
// have just been started, the rendezvous' name, durations. Pure.
namespace launcher {

/// START, of each worker.
std::string events_of_start(const Job& job, const World& world);

/// SUCCEEDED, FAILED or TERMINATED (stopped by ddprun) of each worker of the
/// last attempt, then SUCCEEDED or FAILED of ddprun, here as torchrun's agent.
///
/// @param run_time of all attempts
std::string events_of_end(const Job& job,
                          const World& world,
                          const AttemptResult& result,
                          const Report& report,
                          std::chrono::milliseconds run_time);

}  // namespace launcher
