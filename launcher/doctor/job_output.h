#pragma once

#include <chrono>
#include <string>

#include "launcher/base/environment.h"
#include "launcher/options/options.h"

namespace launcher {

/// Output of a job and its ddprun, up to a maximum size.
struct JobOutput {
  std::string out;
  std::string err;
  bool is_late = false;  ///< the job was stopped at its limit
};

/// Runs a job of the doctor in a child process, as a user would, and blocks
/// until it has ended. To be called from the main thread, which must be the
/// only thread that uses stdio.
///
/// @param limit after this time the job is stopped, and killed if it does not
///   end within 20 s
JobOutput run_job(const LaunchOptions& options,
                  const Environment& environment,
                  std::chrono::milliseconds limit);

/// Returns the path of ddprun's own executable.
std::string own_path();

/// Returns `environment` without the options of this ddprun (PET_...), which do
/// not apply to the doctor's job.
Environment without_own_options(Environment environment);

/// Returns the line of `err` that explains a failure best: the dynamic
/// loader's, else the last one of ddprun ("ddprun: ..."). Empty if there is
/// none.
std::string reason_in(const std::string& err);

}  // namespace launcher
