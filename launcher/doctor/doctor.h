#pragma once

#include <functional>
#include <string>

#include "launcher/options/options.h"

namespace launcher {

struct Diagnosis {
  std::string text;  ///< for stdout
  int exit_code;     ///< of ddprun: 1 if a job would fail
};

/// Implements ddprun --doctor: checks whether this machine is fit for the job
/// of the options. With several hosts, waits for the other hosts and tests the
/// paths between them. To be called from the main thread.
///
/// @param tell receives messages for the user while it waits
Diagnosis examine(const DoctorOptions& options,
                  const Environment& environment,
                  const std::function<void(const std::string&)>& tell);

}  // namespace launcher
