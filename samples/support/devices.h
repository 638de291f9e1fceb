#pragma once

#include <ddp/process_group.h>

#include <optional>
#include <string>
#include <vector>

#include "samples/support/command_line.h"

namespace samples {

/// Where a rank computes and how ranks talk.
struct DeviceOptions {
  std::optional<std::string> backend;  ///< unset: what the machine has
  std::vector<int> gpus;  ///< GPU ids, one for each local rank; empty: 0, 1, ..
  bool no_cuda = false;
};

/// Adds --backend, --gpus and --no-cuda.
void add_device_options(CommandLine& line, DeviceOptions& device);

/// Pure: the options of `ddp::init_process_group` for this rank. `gpu_count` is
/// how many GPUs LibTorch sees.
///
/// @throws c10::Error when `gpus` does not name one existing GPU for each of
///   this host's ranks.
ddp::ProcessGroupOptions process_group_options(const DeviceOptions& options,
                                               const ddp::WorkerEnv& env,
                                               int gpu_count);

/// Joins the launcher's process group by these options.
void init_process_group(const DeviceOptions& options);

/// Waits until the device has done what it was asked for.
void synchronize(c10::Device device);

/// GPUs that LibTorch sees.
int gpu_count();

/// Adds --devices, a list of names. `without` says in the help what happens
/// when it is not given.
void add_devices_option(CommandLine& line,
                        std::vector<std::string>& names,
                        const std::string& without);

/// Pure: the device of this name: "cpu", or "cuda:1" or "1" for GPU 1.
/// @throws c10::Error when the name is none of these, or the GPU is not there.
c10::Device parse_device(const std::string& name, int gpu_count);

/// Pure: the devices of these names; without a name all GPUs there are.
std::vector<c10::Device> devices_or_gpus(const std::vector<std::string>& names,
                                         int gpu_count);

/// Pure: the devices of these names; without a name all GPUs where there are
/// two or more, else the CPU three times.
std::vector<c10::Device> devices_or_several(
    const std::vector<std::string>& names, int gpu_count);

}  // namespace samples
