#pragma once

#include "launcher/doctor/finding.h"
#include "launcher/doctor/machine.h"

namespace launcher {

/// Judges a machine for a job. Pure: a finding for each thing that was looked
/// at, in the order in which they are to be read.
Findings diagnose(const MachineFacts& machine, const JobShape& job);

/// Its parts. Devices: GPUs, the driver, CUDA_VISIBLE_DEVICES, links and NUMA
/// nodes against the number of workers.
Findings diagnose_gpus(const MachineFacts& machine, const JobShape& job);
/// Names, ports, and the interfaces that Gloo and NCCL take.
Findings diagnose_network(const MachineFacts& machine, const JobShape& job);
/// CPUs, memory, limits, the folder for temporary files.
Findings diagnose_system(const MachineFacts& machine, const JobShape& job);
/// LibTorch, CUDA and NCCL against the driver, and the all-reduce.
Findings diagnose_libraries(const MachineFacts& machine, const JobShape& job);

/// How many GPUs a program sees here, by CUDA_VISIBLE_DEVICES; 0 where that
/// names one that is not there.
int visible_gpu_count(const MachineFacts& machine);

/// How many workers a job has that does not say so: one for each GPU that can
/// be seen, else two.
int usual_worker_count(const MachineFacts& machine);

/// The interfaces that NCCL would use: those that NCCL_SOCKET_IFNAME lets
/// through, else InfiniBand's, else all but docker's, loopback and virbr's,
/// else one of these. By name.
std::vector<std::string> nccl_interfaces(const MachineFacts& machine);

}  // namespace launcher
