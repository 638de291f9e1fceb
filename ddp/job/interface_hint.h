#pragma once

#include <string>

#include "ddp/base/cluster/worker_env.h"

namespace ddp::detail {

/// Pure: the host whose route tells which network interface the Gloo groups of
/// a job listen on (`BackendSpec::reach`); empty when all ranks are on this
/// machine.
std::string interface_hint_of(const WorkerEnv& env);

/// The same for the job of `ddp::init_process_group`.
/// @throws c10::Error without a process group.
std::string interface_hint();

}  // namespace ddp::detail
