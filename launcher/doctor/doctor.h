#pragma once

#include <functional>
#include <string>

#include "launcher/options/options.h"

namespace launcher {

struct Diagnosis {
  std::string text;  ///< for stdout
  int exit_code;     ///< of ddprun: 1 where a job would fail
};

/// ddprun --doctor: looks at this machine and judges it for the job that the
/// options describe; with several hosts, also the ways between them, and waits
/// for the others. To be called from the main thread.
///
/// @param tell what it waits for, for people
Diagnosis examine(const DoctorOptions& options,
                  const Environment& environment,
                  const std::function<void(const std::string&)>& tell);

}  // namespace launcher
