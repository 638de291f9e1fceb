#pragma once

#include "launcher/doctor/finding.h"
#include "launcher/doctor/machine.h"

namespace launcher {

/// Judges a machine for a job. Returns a finding for each check, in reading
/// order. Pure function.
Findings diagnose(const MachineFacts& machine, const JobShape& job);

/// Judges devices: GPUs, the driver, CUDA_VISIBLE_DEVICES, links, and NUMA
/// nodes compared with the number of workers. Part of diagnose().
Findings diagnose_gpus(const MachineFacts& machine, const JobShape& job);
/// Judges names and ports. Part of diagnose().
Findings diagnose_network(const MachineFacts& machine, const JobShape& job);
/// Judges CPUs, shared memory and open files. Part of diagnose().
Findings diagnose_system(const MachineFacts& machine, const JobShape& job);
/// Judges LibTorch, CUDA and NCCL against the driver, and the all-reduce. Part
/// of diagnose().
Findings diagnose_libraries(const MachineFacts& machine, const JobShape& job);

/// Returns the number of GPUs that CUDA_VISIBLE_DEVICES makes visible to a
/// program; 0 if it names a GPU that does not exist.
int visible_gpu_count(const MachineFacts& machine);

/// Returns the default number of workers: one for each visible GPU, else two.
int usual_worker_count(const MachineFacts& machine);

}  // namespace launcher
