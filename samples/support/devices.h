#pragma once

#include <ddp/process_group.h>

#include <optional>
#include <string>
#include <vector>

#include "samples/support/command_line.h"

namespace samples {

/// Selects the device of a rank and the backend.
struct DeviceOptions {
  std::optional<std::string> backend;  ///< unset: NCCL with a GPU, else Gloo
  std::vector<int> gpus;  ///< GPU ids, one for each local rank; empty: 0, 1, ..
  bool no_cuda = false;
};

/// Adds --backend, --gpus and --no-cuda.
void add_device_options(CommandLine& line, DeviceOptions& device);

/// Returns the options of `ddp::init_process_group` for this rank. `gpu_count`
/// is the number of GPUs that LibTorch sees. Pure.
///
/// @throws c10::Error if `gpus` does not name one existing GPU for each rank of
///   this host.
ddp::ProcessGroupOptions process_group_options(const DeviceOptions& options,
                                               const ddp::WorkerEnv& env,
                                               int gpu_count);

/// Joins the launcher's process group with these options.
void init_process_group(const DeviceOptions& options);

/// Blocks until the device has finished all queued work.
void synchronize(c10::Device device);

/// Returns the number of GPUs that LibTorch sees.
int gpu_count();

/// Adds --devices, a list of names. `without` is the help text for the default.
void add_devices_option(CommandLine& line,
                        std::vector<std::string>& names,
                        const std::string& without);

/// Returns the device with this name: "cpu", or "cuda:1" or "1" for GPU 1.
/// Pure.
/// @throws c10::Error if the name is invalid, or if the GPU does not exist.
c10::Device parse_device(const std::string& name, int gpu_count);

/// Returns the devices with these names. Without names, returns all GPUs if
/// there are two or more, otherwise the CPU three times. Pure.
std::vector<c10::Device> devices_or_several(
    const std::vector<std::string>& names, int gpu_count);

}  // namespace samples
