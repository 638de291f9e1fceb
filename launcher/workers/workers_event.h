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
struct WorkersHang {  ///< they make no progress
  Hang hang;
};
struct StartFailed {  ///< no worker runs: one of them could not be started
  int exit_code;
  std::string text;
};
struct ChildrenRemain {};  ///< no worker is left, but something they started is
struct AllAreGone {};      ///< no process of the attempt is left

using WorkersEvent = std::
    variant<StartFailed, WorkersHang, WorkerExited, ChildrenRemain, AllAreGone>;

}  // namespace launcher
