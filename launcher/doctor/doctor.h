#pragma once

#include <string>

#include "launcher/options/options.h"

namespace launcher {

struct Diagnosis {
  std::string text;  ///< for stdout
  int exit_code;     ///< of ddprun: 1 if a job would fail
};

/// Implements ddprun --doctor: checks whether this machine is fit for the job
/// of the options. To be called from the main thread.
Diagnosis examine(const DoctorOptions& options, const Environment& environment);

}  // namespace launcher
