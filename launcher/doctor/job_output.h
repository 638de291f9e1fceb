#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "launcher/base/environment.h"
#include "launcher/options/options.h"

namespace launcher {

/// What a job and its ddprun wrote. Bounded.
struct JobOutput {
  std::string out;
  std::string err;
};

/// Runs a job of the doctor's own as a user would, in a child process, and
/// waits for its end. To be called from the main thread, which must be the only
/// one that uses stdio.
///
/// @param limit  after this time the job is killed
/// @param on_error_line  called with each line of stderr as it comes, without
///   its newline
JobOutput run_job(
    const LaunchOptions& options,
    const Environment& environment,
    std::chrono::milliseconds limit,
    const std::function<void(const std::string&)>& on_error_line = {});

/// ddprun's own executable.
std::string own_path();

/// `environment` without the options of this ddprun (PET_...), which are not
/// those of the doctor's job.
Environment without_own_options(Environment environment);

/// The line of `err` that explains a failure best: the dynamic loader's, else
/// the last one of ddprun ("ddprun: ..."). Empty if there is none.
std::string reason_in(const std::string& err);

}  // namespace launcher
