#pragma once

#include <string>

#include "ddp/base/cluster/worker_env.h"

namespace ddp::detail {

/// Pure: the host whose route selects the network interface of a job's Gloo
/// groups (`BackendSpec::reach`); empty if all ranks are on this machine.
std::string interface_hint_of(const WorkerEnv& env);

/// As above, for the job of `ddp::init_process_group`.
/// @throws c10::Error without a process group.
std::string interface_hint();

}  // namespace ddp::detail
