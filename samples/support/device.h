#pragma once

#include <ddp/process_group.h>

#include <optional>
#include <string>
#include <vector>

namespace samples {

/// Where a rank computes and how ranks talk.
struct DeviceOptions {
  std::optional<std::string> backend;  ///< unset: what the machine has
  std::vector<int> gpus;  ///< GPU ids, one for each local rank; empty: 0, 1, ..
  bool no_cuda = false;
};

/// The options of `ddp::init_process_group` for this rank. `gpu_count` is how
/// many GPUs LibTorch sees.
///
/// @throws c10::Error when `gpus` does not name one existing GPU for each of
///   this host's ranks.
///
/// Example:
/// @code
///   ddp::init_process_group(samples::process_group_options(
///       options, ddp::WorkerEnv::read(), torch::cuda::device_count()));
/// @endcode
ddp::ProcessGroupOptions process_group_options(const DeviceOptions& options,
                                               const ddp::WorkerEnv& env,
                                               int gpu_count);

}  // namespace samples
