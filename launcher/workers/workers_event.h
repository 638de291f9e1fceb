#pragma once

#include <string>
#include <variant>

#include "launcher/base/exit_status.h"
#include "launcher/workers/progress/hang.h"

namespace launcher {

// Events of an attempt's workers.

struct WorkerExited {
  int local_rank;
  ExitStatus status;
};
struct WorkersHang {  ///< some workers make no progress
  Hang hang;
};
struct StartFailed {  ///< a worker could not be started; none runs
  int exit_code;
  std::string text;
};
struct ChildrenRemain {};  ///< all workers ended; child processes remain
struct AllAreGone {};      ///< no process of the attempt is left

using WorkersEvent = std::
    variant<StartFailed, WorkersHang, WorkerExited, ChildrenRemain, AllAreGone>;

}  // namespace launcher
