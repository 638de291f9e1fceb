#pragma once

#include <string>

#include "launcher/base/error.h"

namespace launcher {

/// Explains why an existing program could not be executed, and what to do. Pure
/// function.
///
/// @param error errno of execve()
LaunchError exec_failure(const std::string& path, int error);

/// Explains why a worker could not be bound to its CPUs, and what to do. Pure
/// function.
///
/// @param error errno of CpuSet::bind()
LaunchError binding_failure(int error);

}  // namespace launcher
