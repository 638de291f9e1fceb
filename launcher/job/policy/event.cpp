#include "launcher/job/policy/event.h"

#include <algorithm>
#include <csignal>

namespace launcher {

std::optional<ExitStatus> failure_of(const Cause& cause) {
  if (const auto* exit = std::get_if<WorkerExited>(&cause)) {
    return exit->status;
  }
  if (std::holds_alternative<WorkersHang>(cause)) {
    return ExitStatus{.signal = SIGKILL};
  }
  return std::nullopt;
}

bool is_final(const Cause& cause, const std::vector<int>& codes) {
  const auto failure = failure_of(cause);
  return failure && failure->signal == 0 &&
         std::find(codes.begin(), codes.end(), failure->code) != codes.end();
}

bool is_hung(const Cause& cause, int local_rank) {
  const auto* hangs = std::get_if<WorkersHang>(&cause);
  return hangs != nullptr &&
         std::any_of(hangs->hang.workers.begin(),
                     hangs->hang.workers.end(),
                     [local_rank](const HungWorker& worker) {
                       return worker.local_rank == local_rank;
                     });
}

std::string text_of(Timer timer) {
  switch (timer) {
    case Timer::grace:
      return "grace";
    case Timer::kill:
      return "kill";
    case Timer::preempt:
      return "preempt";
    case Timer::drain:
      break;
  }
  return "drain";
}

}  // namespace launcher
