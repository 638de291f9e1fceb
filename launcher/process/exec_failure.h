#pragma once

#include <string>

#include "launcher/error.h"

namespace launcher {

/// Says why a program that was found could not be executed after all, and what
/// to do. Pure.
///
/// @param error errno of execve()
LaunchError exec_failure(const std::string& path, int error);

}  // namespace launcher
