#pragma once

#include <chrono>
#include <list>

#include "launcher/workers/worker.h"

namespace launcher {

/// Tells workers that they are to save and to end: by its file (see
/// ddp/base/job_files/stop_file.h) who has made it, by the signal who has
/// not.
///
/// @param time that they have
/// @returns how many were told by their files
int request_stop(std::list<Worker>& workers,
                 int number,
                 std::chrono::milliseconds time);

}  // namespace launcher
