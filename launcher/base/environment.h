#pragma once

#include <map>
#include <string>
#include <vector>

#include "ddp/base/cluster/worker_env.h"

namespace launcher {

/// Environment variables by name. ddprun never changes its own environment: a
/// worker's environment is plain data until the worker starts.
using Environment = std::map<std::string, std::string>;

/// Returns the environment that ddprun was started with.
Environment current_environment();

/// Returns the value of `name`; nullptr if it is not set.
const std::string* find_variable(const Environment& environment,
                                 const std::string& name);

/// Returns a reader of the environment, which must outlive the reader.
ddp::EnvReader reader_of(const Environment& environment);

}  // namespace launcher
