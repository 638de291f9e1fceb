#pragma once

#include <string>

#include "launcher/base/environment.h"
#include "launcher/doctor/all_reduce_facts.h"

namespace launcher {

/// Starts ddprun-allreduce, which lies beside this program, as a job of so many
/// workers of this host, by a ddprun of its own, and waits for its end: two
/// minutes at most. To be called from the main thread.
AllReduceFacts run_all_reduce(int worker_count, const Environment& environment);

}  // namespace launcher
