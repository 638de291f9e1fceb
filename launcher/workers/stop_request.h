#pragma once

#include <chrono>
#include <list>

#include "launcher/workers/worker.h"

namespace launcher {

/// Requests that workers save their state and exit. A worker that has created
/// its stop file (see ddp/base/job_files/stop_file.h) receives the request in
/// that file; every other worker receives the signal.
///
/// @param time until the workers must have exited
/// @returns number of workers that received the request in their stop file
int request_stop(std::list<Worker>& workers,
                 int number,
                 std::chrono::milliseconds time);

}  // namespace launcher
