#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/machine/host.h"
#include "launcher/options/options.h"

namespace launcher {

/// Returns the GPUs that a process started by ddprun can use, named as in
/// CUDA_VISIBLE_DEVICES. Without that variable these are all GPUs of the host;
/// otherwise the listed GPUs up to the first entry that is no GPU, as in CUDA.
///
/// @throws LaunchError if the variable names a GPU that the host does not have,
///   or names a GPU twice
std::vector<std::string> visible_gpus(const HostInfo& host,
                                      const Environment& environment);

/// Returns CUDA_VISIBLE_DEVICES for the workers; std::nullopt if they inherit
/// the variable.
///
/// @throws UsageError if --gpus names a GPU that is not visible to ddprun
std::optional<std::string> chosen_gpus(const LaunchOptions& options,
                                       const HostInfo& host,
                                       const Environment& environment);

/// Returns the number of GPUs visible to the workers; 0 if there are none or
/// the number is unknown.
int count_gpus_for_workers(const LaunchOptions& options,
                           const HostInfo& host,
                           const Environment& environment);

/// Returns the GPU of each worker by local rank, for --virtual-local-rank: from
/// --gpus, else from CUDA_VISIBLE_DEVICES, else the host's GPUs. If no GPUs are
/// known, numbers them by local rank, as torchrun does.
///
/// @throws UsageError if there are fewer GPUs than workers
std::vector<std::string> gpus_by_worker(const LaunchOptions& options,
                                        const HostInfo& host,
                                        const Environment& environment,
                                        int worker_count);

/// Returns true if several workers would share several MIG devices: CUDA shows
/// a process only the first one, so each worker needs a device of its own.
bool needs_a_gpu_each(const LaunchOptions& options,
                      const HostInfo& host,
                      const Environment& environment,
                      int worker_count);

/// Returns the NUMA node of each worker's GPU by local rank; std::nullopt if
/// the GPU or its node is unknown. Assumes GPU numbers in PCI bus order, as
/// with CUDA_DEVICE_ORDER=PCI_BUS_ID or with identical GPUs.
std::vector<std::optional<int>> gpu_nodes_of_workers(
    const LaunchOptions& options,
    const HostInfo& host,
    const Environment& environment,
    int worker_count);

/// Returns the number of workers to start on this host.
///
/// @throws UsageError if one worker per GPU is requested and there is no GPU
int choose_worker_count(const LaunchOptions& options,
                        const HostInfo& host,
                        const Environment& environment);

}  // namespace launcher
