#include "launcher/workers/progress/hang.h"

#include "launcher/machine/process_state.h"
#include "launcher/workers/progress/stack.h"

namespace launcher {

Hang hang_of(const TimerTable::Expired& timer, int rank, int local_rank) {
  Hang hang;
  hang.timer = timer.scope;
  hang.signal = timer.signal;
  hang.workers = {{.rank = rank,
                   .local_rank = local_rank,
                   .pid = timer.pid,
                   .quiet = timer.after,
                   .is_stopped = is_stopped(timer.pid),
                   .stack = kernel_place(timer.pid)}};
  return hang;
}

}  // namespace launcher
