#pragma once

#include <chrono>
#include <optional>
#include <variant>
#include <vector>

#include "launcher/job/policy/event.h"

namespace launcher {

// Actions that the Policy requests in response to an event.

struct Join {};
struct Leave {};
struct TellOutcome {  ///< tell the other hosts
  HostOutcome outcome;
};
struct StartWorkers {
  World world;
};
struct PassOn {  ///< forward a signal to all workers and groups
  int number;
};
struct RequestStop {  ///< ask by stop file, else by the signal
  int number;
  std::chrono::milliseconds time;  ///< until the workers must have exited
};
struct StopWorkers {  ///< signal workers and groups so that they end
  int number;
};
struct KillWorkers {  ///< signal hung workers and their groups
  std::vector<int> local_ranks;
  int number;
};
struct KillAll {};          ///< SIGKILL to all processes of the job
struct TerminateStrays {};  ///< SIGTERM to children that are not workers
struct KillStrays {};       ///< SIGKILL to children that are not workers
struct ArmTimer {
  Timer timer;
  std::chrono::milliseconds delay;
};
struct DisarmTimer {
  Timer timer;
};
struct WriteReport {  ///< report the attempt that has ended
  Cause cause;
  std::optional<FirstFailure> first{};  ///< first failure on any host, if known
};
struct DrainOutput {};

using Action = std::variant<Join,
                            Leave,
                            TellOutcome,
                            StartWorkers,
                            PassOn,
                            RequestStop,
                            StopWorkers,
                            KillWorkers,
                            KillAll,
                            TerminateStrays,
                            KillStrays,
                            ArmTimer,
                            DisarmTimer,
                            WriteReport,
                            DrainOutput>;
using Actions = std::vector<Action>;

/// Concatenates two lists of actions.
Actions operator+(Actions first, const Actions& second);

}  // namespace launcher
