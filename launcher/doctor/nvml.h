#pragma once

#include "launcher/doctor/machine.h"

namespace launcher {

/// Reads GPU facts from the driver's library (NVML), which is loaded for this
/// call, and from /sys. Does not need or initialize CUDA.
///
/// @param device_files number of GPUs, as in HostInfo
GpuFacts probe_gpus(int device_files);

}  // namespace launcher
