#pragma once

#include <string>

#include "launcher/base/error.h"

namespace launcher {

/// Says why a program that was found could not be executed after all, and what
/// to do. Pure.
///
/// @param error errno of execve()
LaunchError exec_failure(const std::string& path, int error);

/// The same where a worker could not be bound to its CPUs.
LaunchError binding_failure(int error);

}  // namespace launcher
