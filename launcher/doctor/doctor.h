#pragma once

#include "launcher/cli/options.h"

namespace launcher {

struct Diagnosis {
  std::string text;  ///< for stdout
  int exit_code;     ///< of ddprun: 1 where a job would fail
};

/// ddprun --doctor: looks at this machine and judges it for the job that the
/// options describe. To be called from the main thread.
Diagnosis examine(const DoctorOptions& options, const Environment& environment);

}  // namespace launcher
