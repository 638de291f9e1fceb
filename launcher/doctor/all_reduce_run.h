#pragma once

#include <string>

#include "launcher/base/environment.h"
#include "launcher/doctor/all_reduce_facts.h"

namespace launcher {

/// Runs ddprun-allreduce, which lies in the same folder as this program, as a
/// job with `worker_count` workers on this host, under its own ddprun. Blocks
/// until the job has ended, about two minutes at most. To be called from the
/// main thread.
AllReduceFacts run_all_reduce(int worker_count, const Environment& environment);

}  // namespace launcher
