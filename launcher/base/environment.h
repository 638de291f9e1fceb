#pragma once

#include <map>
#include <string>
#include <vector>

#include "ddp/base/cluster/worker_env.h"

namespace launcher {

/// Environment variables by name. ddprun never changes its own environment:
/// what a worker gets is data until the moment of its start.
using Environment = std::map<std::string, std::string>;

/// The environment ddprun was started with.
Environment current_environment();

/// Value of `name`, or nullptr when it is not set.
const std::string* find_variable(const Environment& environment,
                                 const std::string& name);

/// Names of those variables that whoever started this process as a worker has
/// set for it alone: files of ddprun's, and torchrun's FIFO for timers. A job
/// in this worker has its own, or none.
std::vector<std::string> meant_for_this_worker(const Environment& environment);

/// Reads it by name. It must outlive the reader.
ddp::EnvReader reader_of(const Environment& environment);

}  // namespace launcher
