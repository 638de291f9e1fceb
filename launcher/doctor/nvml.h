#pragma once

#include "launcher/doctor/machine.h"

namespace launcher {

/// Asks the driver's library (NVML), which is loaded for this call, and /sys.
/// Needs no CUDA, and sets none up.
///
/// @param device_files as HostInfo counts them
GpuFacts probe_gpus(int device_files);

}  // namespace launcher
