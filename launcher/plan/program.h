#pragma once

#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/options/options.h"

namespace launcher {

/// The program that every worker runs.
struct Program {
  std::string path;               ///< of the file to execute
  std::vector<std::string> argv;  ///< argv[0] as the user wrote it
};

/// Finds the program of the command line as execvp() would, in the caller's
/// PATH. Python is $PYTHON_EXEC, else the python3 beside ddprun, as in a
/// virtual environment, else the python3 of PATH. It gets -u, so that its
/// output is not buffered. Called before any worker starts.
///
/// @throws LaunchError with kExitNotFound if the file does not exist, with
///   kExitNotExecutable if the file may not be executed
Program find_program(const LaunchOptions& options,
                     const Environment& environment);

}  // namespace launcher
