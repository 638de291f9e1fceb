#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/machine/host.h"
#include "launcher/options/options.h"

namespace launcher {

/// The GPUs that a process started from here can use, named as in
/// CUDA_VISIBLE_DEVICES: all of the host's when that variable is not set, else
/// those it names, up to the first -1 as CUDA reads it.
///
/// @throws LaunchError when the variable names a GPU the host does not have, or
///   one twice
std::vector<std::string> visible_gpus(const HostInfo& host,
                                      const Environment& environment);

/// CUDA_VISIBLE_DEVICES for the workers; nothing when they inherit it.
///
/// @throws UsageError when --gpus names one that is not visible from here
std::optional<std::string> chosen_gpus(const LaunchOptions& options,
                                       const HostInfo& host,
                                       const Environment& environment);

/// How many GPUs the workers will see; 0 also when that is not known.
int count_gpus_for_workers(const LaunchOptions& options,
                           const HostInfo& host,
                           const Environment& environment);

/// --virtual-local-rank: the one GPU of each worker, by local rank. They are
/// those of --gpus, else of CUDA_VISIBLE_DEVICES, else the host's; where
/// nothing is known of GPUs they are numbered by local rank, as in torchrun.
///
/// @throws UsageError when there are fewer than workers
std::vector<std::string> gpus_by_worker(const LaunchOptions& options,
                                        const HostInfo& host,
                                        const Environment& environment,
                                        int worker_count);

/// The NUMA node of each worker's GPU, by local rank, where both are known.
/// GPUs count in the order of the PCI bus, as with CUDA_DEVICE_ORDER=PCI_BUS_ID
/// or GPUs that are all alike.
std::vector<std::optional<int>> gpu_nodes_of_workers(
    const LaunchOptions& options,
    const HostInfo& host,
    const Environment& environment,
    int worker_count);

/// How many workers to start on this host.
///
/// @throws UsageError when it is to be the number of GPUs and there is none
int choose_worker_count(const LaunchOptions& options,
                        const HostInfo& host,
                        const Environment& environment);

}  // namespace launcher
