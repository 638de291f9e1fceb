#pragma once

#include <chrono>
#include <optional>
#include <variant>
#include <vector>

#include "launcher/job/policy/event.h"

namespace launcher {

// What is to be done about an event.

struct Join {};
struct Leave {};
struct TellOutcome {  ///< to the other hosts
  HostOutcome outcome;
};
struct StartWorkers {
  World world;
};
struct PassOn {  ///< a signal, to all workers and their groups
  int number;
};
struct RequestStop {  ///< by the files of those who ask, by the signal of
                      ///< others
  int number;
  std::chrono::milliseconds time;  ///< that they have
};
struct StopWorkers {  ///< signal them and their groups: they are to end
  int number;
};
struct KillWorkers {  ///< those that hang, and their groups
  std::vector<int> local_ranks;
  int number;
};
struct KillAll {};     ///< SIGKILL to everything
struct AskStrays {};   ///< SIGTERM to children that are no workers
struct KillStrays {};  ///< SIGKILL to them
struct ArmTimer {
  Timer timer;
  std::chrono::milliseconds delay;
};
struct DisarmTimer {
  Timer timer;
};
struct WriteReport {  ///< the attempt is over: say how it went
  Cause cause;
  std::optional<FirstFailure> first{};  ///< of all hosts' workers, if known
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
                            AskStrays,
                            KillStrays,
                            ArmTimer,
                            DisarmTimer,
                            WriteReport,
                            DrainOutput>;
using Actions = std::vector<Action>;

/// One after the other.
Actions operator+(Actions first, const Actions& second);

}  // namespace launcher
